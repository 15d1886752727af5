"""Background tasks end, even those that lose a cancellation."""

from __future__ import annotations

import asyncio

from shared.platform.tasks import end


async def test_a_task_that_loses_its_first_cancellation_ends() -> None:
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end([task])
    assert (task.cancelled(), lost) == (True, 2)


async def test_what_a_task_has_died_of_is_dropped() -> None:
    async def dies() -> None:
        raise ValueError

    task = asyncio.create_task(dies())
    await asyncio.wait({task})
    await end([task])
