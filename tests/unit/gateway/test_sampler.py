"""The overview is taken once a second for all viewers together, and never without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from gateway.ops.overview.sampler import Sampler
from shared.job.errors import OverviewFailed
from tests.harness.waiting import eventually

INTERVAL_S = 0.03


class Source:
    """Counts how often it is read; `error` is raised, if set."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    async def take(self) -> dict[str, Any]:
        self.reads += 1
        if self.error:
            raise self.error
        return {"number": self.reads}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def sampler(source: Source) -> AsyncIterator[Sampler]:
    sampler = Sampler(source.take, INTERVAL_S, linger_s=2 * INTERVAL_S)
    yield sampler
    await sampler.close()


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, "it holds")


async def task_ended(sampler: Sampler) -> None:
    await until(lambda: sampler._task is not None and sampler._task.done())


async def read(sampler: Sampler, times: int) -> list[int]:
    found: list[int] = []
    async with aclosing(sampler.follow()) as stream:
        async for data in stream:
            found.append(json.loads(data)["number"])
            if len(found) == times:
                break
    return found


async def test_fifty_viewers_cost_as_many_readings_as_one(sampler: Sampler, source: Source) -> None:
    found = await asyncio.gather(*(read(sampler, 5) for _ in range(50)))
    assert all(each == found[0] for each in found)
    assert source.reads <= 6
    assert sampler._viewers == 0


async def test_nothing_is_read_without_a_viewer(sampler: Sampler, source: Source) -> None:
    assert (sampler._task, source.reads) == (None, 0), "only its task reads"
    await read(sampler, 2)
    await task_ended(sampler)
    assert source.reads <= 3


async def test_an_error_does_not_end_the_streams(sampler: Sampler, source: Source) -> None:
    reading = asyncio.create_task(read(sampler, 3))
    await until(lambda: source.reads >= 1)
    source.error = RuntimeError("broken")
    reads = source.reads
    await until(lambda: source.reads >= reads + 2)
    source.error = None
    assert len(await reading) == 3


async def test_a_reading_that_fails_is_an_error_and_the_next_one_an_answer(
    sampler: Sampler, source: Source
) -> None:
    source.error = RuntimeError("broken")
    for _ in range(2):
        with pytest.raises(OverviewFailed):
            await sampler.latest()
    source.error = None
    assert json.loads(await sampler.latest())["number"] > 2


async def test_after_a_change_nothing_that_was_read_before_is_served(source: Source) -> None:
    sampler = Sampler(source.take, interval_s=60)
    assert json.loads(await sampler.latest()) == {"number": 1}
    assert json.loads(await sampler.latest()) == {"number": 1}
    sampler.outdate()
    assert json.loads(await sampler.latest()) == {"number": 2}
    await sampler.close()


async def test_a_reading_during_which_the_fleet_was_changed_is_not_served() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    numbers = iter(range(10))

    async def take() -> dict[str, Any]:
        number = next(numbers)
        begun.set()
        if not number:
            await go_on.wait()
        return {"number": number}

    sampler = Sampler(take, interval_s=60)
    asking = asyncio.create_task(sampler.latest())
    await begun.wait()
    sampler.outdate()
    go_on.set()
    assert json.loads(await asking) == {"number": 1}
    await sampler.close()
