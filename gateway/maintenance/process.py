"""The process that does the maintenance process: its start, its signals and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from celery.beat import EmbeddedService
from celery.worker import WorkController, state

from gateway.maintenance.app import LONGEST_S, create_app
from gateway.maintenance.async_runner import AsyncRunner
from gateway.maintenance.broker import broker, refusal
from gateway.maintenance.schedule import intervals
from shared.platform import eviction, logs
from shared.platform.settings import Settings, SettingsError

log = logging.getLogger("flotilla.maintenance")

_GRACE_S = 8.0
"""From a signal to the end; a message that was taken and not acknowledged is drawn again later."""


def run(settings: Settings) -> NoReturn:
    """Do the maintenance process until SIGTERM or SIGINT, then exit 0. Raises SettingsError."""
    broker(settings)  # whether the addresses make sense
    bridge = AsyncRunner(settings, LONGEST_S, on_stuck=lambda: _exit(1))
    app = create_app(settings, bridge.perform)
    app.set_default()  # in all threads: parts of Celery look for their application there
    asyncio.run(eviction.refuse_evicting(settings.all_redis_urls))
    if problem := asyncio.run(refusal(settings)):
        raise SettingsError(problem)
    for library in ("celery", "kombu"):
        logs.show_warnings(library, settings.log_format)
    # That it can't send while Redis is away the consumer says too, in one line.
    logging.getLogger("celery.beat").setLevel(logging.CRITICAL)
    beat = EmbeddedService(app, thread=True, scheduler_cls=app.conf.beat_scheduler)
    worker = WorkController(
        app=app,
        # Not before: nothing is sent that nobody takes.
        ready_callback=lambda consumer: beat.start(),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )

    def stop(number: int, frame: Any) -> None:
        state.should_stop = os.EX_OK  # Celery looks at it once a second
        bridge.interrupt()
        grace = threading.Timer(_GRACE_S, _exit, (os.EX_OK,))
        grace.daemon = True
        grace.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    bridge.start()
    rounds = [f"{name} every {every_s:g} s" for name, every_s in intervals(settings).items()]
    log.info("%s", ", ".join(rounds))
    worker.start()
    bridge.close()
    # Beat's thread may hang in a call to a Redis that is away, and has nothing to save.
    _exit(worker.exitcode or os.EX_OK)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
