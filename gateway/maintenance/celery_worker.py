"""`python -m gateway.maintenance.celery_worker`: Celery's worker and beat in one process.

celery_process.py starts it, and starts it again when it ends, for example because a message is not
JSON at all.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from typing import Any

from celery import signals
from celery.beat import EmbeddedService, Scheduler
from celery.platforms import SecurityWarning

from gateway.batches.batch_context import BatchContext
from gateway.batches.batch_work import BatchWork
from gateway.gateway_settings import GatewaySettings
from gateway.maintenance.celery_app import create_app
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from gateway.maintenance.maintenance_tasks import MaintenanceTasks
from shared.fleet.pools import load_pools
from shared.platform import logs
from shared.platform.settings import load_settings
from shared.store.redis.servers import Servers


def main() -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError."""
    settings = load_settings(MaintenanceSettings)
    logs.set_up(settings.log_level, settings.log_format)
    for library in ("celery", "kombu"):
        logs.show_warnings(library, settings.log_format)
    # Without Redis the worker logs that in one line; beat would add a traceback a second.
    logging.getLogger("celery.beat").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=SecurityWarning)  # root in a container is no risk
    with asyncio.Runner() as runner:
        servers = Servers(settings.redis_url, settings.shards, max_connections=8)
        batches = context = None
        if settings.storage_url:
            context = BatchContext.of(load_settings(GatewaySettings), servers)
            batches = BatchWork(context).work
        tasks = MaintenanceTasks(settings, load_pools(settings), batches)
        app = create_app(settings, lambda name: runner.run(tasks.run(name)))
        app.set_default()  # of all threads: some parts of Celery use the default application
        # Beat as a thread, whose schedule is in memory: no more processes, no file.
        beat = EmbeddedService(app, thread=True, scheduler_cls=Scheduler)

        def keep_logging(**_: Any) -> None:
            """With a receiver of this signal, Celery does not configure logging."""

        def start_beat(**_: Any) -> None:
            beat.start()

        signals.setup_logging.connect(keep_logging)
        signals.worker_ready.connect(start_beat)  # not before: messages would wait for the worker
        worker = app.Worker(
            quiet=True, without_gossip=True, without_mingle=True, without_heartbeat=True
        )
        worker.start()
        runner.run(tasks.close())
        if context is not None:
            runner.run(context.queue.close())
        runner.run(servers.close())
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
