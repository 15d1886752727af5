"""Background tasks: a task that ends by itself is reported; all end when they are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from shared.platform.tasks import TaskSupervisor, end, run_together


class Stubborn:
    """Loses some cancellations."""

    def __init__(self, loses: int = 1) -> None:
        self._loses = loses
        self.ended = False

    async def run(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._loses == 0:
                    self.ended = True
                    raise
                self._loses -= 1


async def test_a_task_that_loses_its_first_cancellation_ends() -> None:
    stubborn = Stubborn()
    task = asyncio.create_task(stubborn.run())
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()
    assert stubborn.ended


async def test_its_own_cancellation_waits_for_the_tasks() -> None:
    stubborn = Stubborn(loses=2)
    task = asyncio.create_task(stubborn.run())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end([task]))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert stubborn.ended


async def test_what_runs_together_ends_together() -> None:
    stubborn = Stubborn(loses=2)
    task = asyncio.create_task(run_together(forever(), stubborn.run(), forever()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await end([task])
    assert stubborn.ended
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_runs_together_ends_with_the_first_that_fails() -> None:
    stubborn = Stubborn()
    with pytest.raises(ValueError, match="broken"):
        await run_together(stubborn.run(), returns(), raises())
    assert stubborn.ended
    assert await run_together(asyncio.sleep(0, "a"), asyncio.sleep(0, 2)) == ["a", 2]


async def test_the_error_of_a_failed_task_is_dropped() -> None:
    async def dies() -> None:
        raise ValueError

    task = asyncio.create_task(dies())
    await asyncio.wait({task})
    await end([task])


async def forever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    pass


async def raises() -> None:
    raise ValueError("broken")


async def test_a_task_that_ends_by_itself_is_reported_with_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = TaskSupervisor()
    for work in (forever, returns, raises):
        tasks.start(work.__name__, work())
    assert tasks.ended == {}
    await asyncio.sleep(0.01)
    assert tasks.ended == {"returns": "returned", "raises": "ValueError('broken')"}
    assert [record.getMessage() for record in caplog.records] == [
        "background task returns has ended: returned",
        "background task raises has ended: ValueError('broken')",
    ]
    await tasks.stop()


async def test_stopping_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskSupervisor()
    tasks.start("forever", forever())
    await tasks.stop()
    assert tasks.ended == {}
    assert not caplog.records
