"""Returns the memory of large requests to the operating system.

The C library keeps freed memory for later use: after a few large bodies, hundreds of megabytes.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any
from weakref import WeakSet

_AFTER_S = 1.0
"""By then most of a request's memory is freed, and one call serves many requests."""
_waiting: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The function of glibc; None with another C library."""


def return_soon() -> None:
    """Return free memory in a second, in a thread; at most once a second. Needs a running loop."""
    loop = asyncio.get_running_loop()
    if _trim is not None and loop not in _waiting:
        _waiting.add(loop)
        loop.call_later(_AFTER_S, _return_now, loop)


def _return_now(loop: asyncio.AbstractEventLoop) -> None:
    _waiting.discard(loop)
    loop.run_in_executor(None, _trim, 0)
