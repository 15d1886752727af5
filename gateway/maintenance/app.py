"""The Celery application: a queue of short tasks that may be lost or done twice, and its beat.

Celery brings each task's name to a process at its time; what happens then is `perform`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from celery import Celery, Task

from gateway.maintenance.broker import broker
from gateway.maintenance.schedule import intervals
from shared.platform.redis_client import TIMEOUT_S
from shared.platform.settings import Settings

LONGEST_S = 20.0
"""A maintenance task that takes longer is given up until its next round."""
_VISIBILITY_S = 300
# Two machines' clocks may differ by so much; a message that is late by more is dropped unread.
_CLOCKS_S = 30.0
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def create_app(settings: Settings, perform: Callable[[str], None]) -> Celery:
    """The application; its tasks call `perform` with the name of a maintenance task. Raises SettingsError."""
    # No fixups, no loader's file: nothing but this configures it.
    app = Celery("flotilla", fixups=(), set_as_current=False)
    app.conf.update(configuration(settings))
    for name in intervals(settings):
        app.task(_run, name=name, bind=True, shared=False, perform=staticmethod(perform))
    return app


def _run(task: Task) -> None:
    task.perform(task.name)


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings. Raises SettingsError."""
    where = broker(settings)
    return {
        "broker_url": where.url,
        "broker_use_ssl": where.ssl or False,
        "broker_transport_options": {
            "global_keyprefix": where.prefix,
            "visibility_timeout": _VISIBILITY_S,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "socket_keepalive": not where.url.startswith("redis+socket:"),
            "health_check_interval": 10,
        },
        # For ever, and at start too: the supervisor that would start us again has no better Redis.
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_heartbeat": 0,
        # A message is plain data, never code.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_default_queue": "maintenance",
        "task_create_missing_queues": False,
        # A maintenance task whose process dies is done again; that it may be done twice is no harm.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_publish_retry": False,  # the next beat is the retry
        # No limit, which in a solo pool means one after the other. With a limit of one, a message
        # whose acknowledgement is lost with the connection is the last one that Celery ever takes.
        "worker_prefetch_multiplier": 0,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_consumer": "gateway.maintenance.consumer:TolerantConsumer",
        "worker_pool": "solo",
        "worker_concurrency": 1,
        "enable_utc": True,
        "timezone": "UTC",
        "beat_scheduler": "celery.beat:Scheduler",  # in memory: writes no file
        "beat_max_loop_interval": 1,
        "beat_schedule": {
            name: {
                "task": name,
                "schedule": every_s,
                "last_run_at": _LONG_AGO,  # so the first round is now
                # Nothing piles up while nobody takes messages.
                "options": {"expires": every_s + _CLOCKS_S},
            }
            for name, every_s in intervals(settings).items()
        },
    }
