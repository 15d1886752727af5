"""Ends a worker whose model does not load in time, so that its supervisor can start a new one."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

log = logging.getLogger("flotilla.worker")

_MARGIN_S = 10.0
"""After the limit, for the event loop to end the start itself. A loop that loads a model may be
blocked for minutes; then the process ends without it."""


class StartTimeout(Exception):
    """The engine's start took longer than FLOTILLA_STARTUP_TIMEOUT_S."""


class StartLimit:
    """The time limit of one start."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def wait(self, start: Coroutine[Any, Any, None]) -> None:
        """Wait for the start. Raises StartTimeout, and what it raises."""
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                await start
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StartTimeout(
                f"the model did not load within {self._limit_s:g} s (FLOTILLA_STARTUP_TIMEOUT_S)"
            ) from error


def _end_process() -> None:
    faulthandler.dump_traceback()
    os._exit(1)


@contextlib.contextmanager
def start_limit(
    limit_s: float, on_blocked: Callable[[], None] = _end_process, margin_s: float = _MARGIN_S
) -> Iterator[StartLimit]:
    """A limit for the start in this context.

    `on_blocked` is called in a thread if the start still runs `margin_s` after the limit.
    """

    def give_up() -> None:
        log.critical("the model did not load within %g s: this process ends", limit_s)
        on_blocked()

    timer = threading.Timer(min(limit_s + margin_s, threading.TIMEOUT_MAX), give_up)
    timer.daemon = True
    timer.name = "start limit"
    timer.start()
    try:
        yield StartLimit(limit_s)
    finally:
        timer.cancel()
