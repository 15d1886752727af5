"""Ends a process whose event loop stands still, so that its supervisor can start a new one.

A loop that is blocked answers no probe and loses its jobs, and no task of the process can end
that, as all run on that loop. C code that never releases the GIL blocks the watchdog, too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger("flotilla.watchdog")

_TICK_S = 1.0


def _end_process() -> None:
    faulthandler.dump_traceback()
    os._exit(1)


class LoopWatchdog:
    """Watches the running event loop from a thread.

    `limit_s`: how long the loop may stand still. `active`: the watchdog waits while it is false.
    A process that was stopped as a whole (SIGSTOP) is not ended when it goes on: ticks of the
    thread are counted, not seconds.
    """

    def __init__(
        self,
        limit_s: float = 60.0,
        active: Callable[[], bool] = lambda: True,
        on_stall: Callable[[], None] = _end_process,
    ) -> None:
        self._tick_s = min(_TICK_S, limit_s / 4)
        self._limit_s = limit_s
        self._active = active
        self._on_stall = on_stall
        self._beaten = True
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the loop that runs now, until `stop` or the end of the process."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the watchdog."""
        self._stopped.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        missed = 0
        while not self._stopped.wait(self._tick_s):
            if self._beaten:
                self._beaten, missed = False, 0
                try:
                    loop.call_soon_threadsafe(self._beat)
                except RuntimeError:  # the loop is closed
                    return
            elif self._active():
                missed += 1
            if missed * self._tick_s >= self._limit_s:
                log.critical(
                    "the event loop has stood still for %.0f s: this process ends", self._limit_s
                )
                self._on_stall()
                missed = 0

    def _beat(self) -> None:
        self._beaten = True
