"""A read, or another call that may be repeated, is repeated after a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.store.interface import StoreTimeout, StoreUnavailable

LONGEST_S = 5.0
"""As long as a call to a Redis that does not answer."""
_PAUSE_S = 0.05

Reply = TypeVar("Reply")


async def read_again(read: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply of a read, which is repeated while there is no connection. Raises StoreError."""
    give_up_at = time.monotonic() + LONGEST_S
    while True:
        try:
            return await read()
        except StoreUnavailable as error:
            if isinstance(error, StoreTimeout) or time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(_PAUSE_S)
