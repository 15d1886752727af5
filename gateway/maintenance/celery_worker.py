"""`python -m gateway.maintenance.celery_worker`: Celery's worker and beat in one process.

celery_process.py starts it, and starts it again when it ends, for example because a message is not
JSON at all.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from celery import signals
from celery.beat import EmbeddedService, Scheduler
from celery.platforms import SecurityWarning

from gateway.maintenance.celery_app import create_app
from gateway.maintenance.loop_thread import LoopThread
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from gateway.maintenance.maintenance_tasks import BATCHES, WEBHOOKS, MaintenanceTasks
from gateway.webhooks.webhook_sender import WebhookSender
from gateway.webhooks.webhook_work import WebhookWork
from shared.fleet.pools import load_pools
from shared.platform import logs
from shared.platform.settings import load_settings
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.webhooks.address_check import AllowedAddresses


def main() -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError."""
    settings = load_settings(MaintenanceSettings)
    logs.set_up(settings.log_level, settings.log_format)
    for library in ("celery", "kombu"):
        logs.show_warnings(library, settings.log_format)
    # Without Redis the worker logs that in one line; beat would add a traceback a second.
    logging.getLogger("celery.beat").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=SecurityWarning)  # root in a container is no risk
    loop = LoopThread()
    tasks, close = loop.run(_make_tasks(settings))
    app = create_app(settings, lambda name: loop.run(tasks.run(name)))
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
    loop.run(close())
    loop.close()
    sys.exit(worker.exitcode)


async def _make_tasks(
    settings: MaintenanceSettings,
) -> tuple[MaintenanceTasks, Callable[[], Coroutine[Any, Any, None]]]:
    """The tasks, and how to close what they use. Raises SettingsError."""
    servers = Servers(settings.redis_url, settings.shards)
    queue = Queue(servers)
    sender = WebhookSender(AllowedAddresses.of(settings.webhook_allow))
    webhooks, context = WebhookWork(queue, sender), None
    further = {WEBHOOKS: webhooks.keep_working}
    if settings.storage_url:  # what batches need, as FastAPI, is half of the time of a start
        from gateway.batches.batch_context import BatchContext
        from gateway.batches.batch_work import BatchWork
        from gateway.gateway_settings import GatewaySettings

        context = BatchContext.of(load_settings(GatewaySettings), servers)
        further[BATCHES] = BatchWork(context).work
    tasks = MaintenanceTasks(settings, load_pools(settings), further)

    async def close() -> None:
        await webhooks.close()
        await tasks.close()
        if context is not None:
            await context.queue.close()
        await queue.close()
        await servers.close()

    return tasks, close


if __name__ == "__main__":
    main()
