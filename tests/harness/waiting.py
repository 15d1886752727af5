"""Wait for a condition with a deadline, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
_POLL_S = 0.01


def wait_for(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Return the condition's first true value; fails after `deadline_s`."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(_POLL_S)
    return value


async def eventually(
    condition: Callable[[], Awaitable[T]], what: str, deadline_s: float = DEADLINE_S
) -> T:
    """`wait_for` with a condition that is awaited."""
    until = time.monotonic() + deadline_s
    while not (value := await condition()):
        assert time.monotonic() < until, f"not within {deadline_s:.0f} s: {what}"
        await asyncio.sleep(_POLL_S)
    return value
