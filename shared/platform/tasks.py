"""Background tasks: watched while they run, cancelled at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar, overload

log = logging.getLogger("flotilla.tasks")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

_AGAIN_S = 0.1


class TaskSupervisor:
    """Runs tasks that should not end before `stop`, and reports each that does."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        """The tasks that have ended by themselves: name -> why."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task. `name` is shown in logs and `/readyz`."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(partial(self._on_end, name))
        self._tasks.append(task)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self._stopping = True
        await end(self._tasks)

    def _on_end(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopping:
            return
        reason = "was cancelled" if task.cancelled() else repr(error) if error else "returned"
        self.ended[name] = reason[:200]
        log.error("background task %s has ended: %s", name, reason, exc_info=error)


@overload
async def run_together(first: Awaitable[A], second: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def run_together(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /
) -> tuple[A, B, C]: ...
@overload
async def run_together(*works: Awaitable[A]) -> list[A]: ...


async def run_together(*works: Awaitable[Any]) -> Any:
    """Run all until all have ended; returns their results. Raises the error of the first that
    fails, or CancelledError, once the others have been ended.

    `asyncio.gather` leaves the others running when one fails, and returns with the first that is
    cancelled.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await end(tasks)
        raise


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks until all have ended. What they raise is dropped; if this is cancelled
    meanwhile, it raises CancelledError afterwards.

    Cancelling once is not enough: `asyncio.wait_for` of Python 3.11, which redis-py uses, loses a
    cancellation that arrives at the moment when the awaited thing completes.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := {task for task in tasks if not task.done()}:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
    await asyncio.gather(*tasks, return_exceptions=True)
    if cancelled:
        raise cancelled
