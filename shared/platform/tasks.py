"""Ending background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

_AGAIN_S = 0.1


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended. What they raise is dropped.

    Cancelling once is not enough: `asyncio.wait_for` of Python 3.11, which redis-py uses, loses a
    cancellation that arrives at the moment when the awaited thing completes.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
