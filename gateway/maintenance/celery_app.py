"""The Celery application: its tasks, its schedule (beat) and its settings.

Celery is for work that is queued and may wait: clean-up, batches, and webhooks. Its solo pool runs
one task at a time; what a task has started on the event loop goes on beside the next ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu.serialization import register

from gateway.maintenance.broker import broker
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from gateway.maintenance.maintenance_tasks import TIMEOUT_S as TASK_TIMEOUT_S
from gateway.maintenance.maintenance_tasks import celery_intervals
from shared.store.connection import TIMEOUT_S

SERIALIZER = "flotilla-json"
CONTENT_TYPE = "application/x-flotilla-json"
_VISIBILITY_TIMEOUT_S = 15 * TASK_TIMEOUT_S
# The clocks of two machines may differ by this much; a message that is later is dropped.
_CLOCK_SKEW_S = 30.0
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def create_app(settings: MaintenanceSettings, run: Callable[[str], None]) -> Celery:
    """The application; its tasks call `run` with the task's name. Raises SettingsError."""
    register(SERIALIZER, json.dumps, _load_message, CONTENT_TYPE, "utf-8")  # type: ignore[no-untyped-call]
    # Without fixups and a loader's file, only `configuration` configures it.
    app = Celery("flotilla", fixups=(), set_as_current=False)
    app.conf.update(configuration(settings))
    for name in celery_intervals(settings):
        _add_task(app, name, run)
    return app


def _add_task(app: Celery, name: str, run: Callable[[str], None]) -> None:
    @app.task(name=name, shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
    def task() -> None:
        run(name)


def _load_message(text: str | bytes) -> Any:
    """A message's body: (arguments, keyword arguments, options). Raises ValueError.

    Celery drops a body that can't be decoded. One that it decodes but does not understand ends its
    worker and goes back into the queue, where it would end the next worker.
    """
    match json.loads(text):
        case [list(), dict(), dict()] as body:
            return body
    raise ValueError("the body is not [arguments, keyword arguments, options]")


def configuration(settings: MaintenanceSettings) -> dict[str, Any]:
    """Celery's settings. Raises SettingsError."""
    where = broker(settings)
    return {
        "broker_url": where.url,
        "broker_use_ssl": where.ssl or False,
        "broker_transport_options": {
            **where.transport_options,
            "global_keyprefix": where.prefix,
            "visibility_timeout": _VISIBILITY_TIMEOUT_S,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "socket_keepalive": not where.url.startswith("redis+socket:"),
            "health_check_interval": 10,
        },
        # Without a limit, at start too: another process would find the same Redis.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A message is data, never code.
        "task_serializer": SERIALIZER,
        "accept_content": [SERIALIZER],
        "task_ignore_result": True,
        "task_default_queue": "maintenance",
        "task_create_missing_queues": False,
        # A task whose worker has ended runs again.
        "task_acks_late": True,
        "task_publish_retry": False,  # beat's next message is the retry
        # 0 is no limit; the solo pool runs one task after the other anyway. With a limit of 1,
        # Celery takes no more messages after an acknowledgement was lost with its connection.
        "worker_prefetch_multiplier": 0,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_enable_remote_control": False,
        "worker_pool": "solo",
        "worker_concurrency": 1,
        "beat_max_loop_interval": 1,
        "beat_schedule": {
            name: {
                "task": name,
                "schedule": interval_s,
                "last_run_at": _LONG_AGO,  # the first round is due at once
                # Messages do not pile up while no worker takes them.
                "options": {"expires": interval_s + _CLOCK_SKEW_S},
            }
            for name, interval_s in celery_intervals(settings).items()
        },
    }
