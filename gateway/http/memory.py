"""Memory that large requests leave behind goes back to the operating system.

The C library keeps what was freed for the next request: after a few large bodies that is hundreds
of megabytes which nobody uses.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any
from weakref import WeakSet

_AFTER_S = 1.0
"""Most of what a request needs is freed by then, and many requests are served by one call."""


_waiting: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _malloc_trim() -> Any:
    """Glibc's function; None with any other C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_trim = _malloc_trim()


def return_soon() -> None:
    """Return what is free in a second, in a thread; once a second at most. Call it on the loop."""
    loop = asyncio.get_running_loop()
    if _trim is not None and loop not in _waiting:
        _waiting.add(loop)
        loop.call_later(_AFTER_S, _return_now, loop)


def _return_now(loop: asyncio.AbstractEventLoop) -> None:
    _waiting.discard(loop)
    loop.run_in_executor(None, _trim, 0)
