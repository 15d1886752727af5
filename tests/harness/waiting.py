"""Wait for a condition with a deadline, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

T = TypeVar("T")

DEADLINE_S = 150.0
"""Long enough beside busy processes: what comes at all comes much sooner."""
_POLL_S, _LONGEST_POLL_S = 0.01, 0.1


class ProcessError(AssertionError):
    """A process ended, or something did not come in time; the message has the end of its log."""


class Watched(Protocol):
    """A process that is watched while a test waits for what it does."""

    def check(self) -> None:
        """Raise ProcessError if it has ended."""

    def tail(self) -> str:
        """The end of its log."""


def wait_for(
    condition: Callable[[], T],
    what: str,
    deadline_s: float = DEADLINE_S,
    processes: Iterable[Watched] = (),
) -> T:
    """Return the condition's first true value.

    Raises ProcessError after `deadline_s`, or as soon as one of `processes` has ended.
    """
    began = time.monotonic()
    while not (value := condition()):
        for process in processes:
            process.check()
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            tails = "\n".join(process.tail() for process in processes)
            raise ProcessError(f"not within {deadline_s:.0f} s: {what}\n{tails}")
        time.sleep(_pause_s(waited_s))
    return value


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], what: str, deadline_s: float = DEADLINE_S
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S
) -> T: ...
async def eventually(
    condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S
) -> Any:
    """`wait_for` while the event loop goes on; the condition may be awaited."""
    began = time.monotonic()
    while True:
        value = condition()
        value = await value if isinstance(value, Awaitable) else value
        if value:
            break
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            raise ProcessError(f"not within {deadline_s:.0f} s: {what}")
        await asyncio.sleep(_pause_s(waited_s))
    return value


def _pause_s(waited_s: float) -> float:
    """The longer something takes, the more rarely it is asked for, as asking costs CPU time."""
    return min(max(_POLL_S, waited_s / 20), _LONGEST_POLL_S)
