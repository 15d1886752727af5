"""Wait for a condition with a deadline: no test sleeps and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
_AGAIN_S = 0.01


def wait_for(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The condition's first true value."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"not in {deadline_s:.0f} s: {what}"
        time.sleep(_AGAIN_S)
    return value


async def eventually(
    condition: Callable[[], Awaitable[T]], what: str, deadline_s: float = DEADLINE_S
) -> T:
    """The same for a condition that has to be awaited."""
    until = time.monotonic() + deadline_s
    while not (value := await condition()):
        assert time.monotonic() < until, f"not in {deadline_s:.0f} s: {what}"
        await asyncio.sleep(_AGAIN_S)
    return value
