"""Background tasks: a task that ends by itself is reported; all end when they are cancelled."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Gauge

from shared.platform.tasks import TaskSupervisor, end


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


async def test_the_error_of_a_failed_task_is_dropped() -> None:
    async def dies() -> None:
        raise ValueError

    task = asyncio.create_task(dies())
    await asyncio.wait({task})
    await end([task])


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def supervisor(registry: CollectorRegistry) -> TaskSupervisor:
    return TaskSupervisor(Gauge("running", "one", ["task"], registry=registry))


async def forever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    pass


async def raises() -> None:
    raise ValueError("broken")


async def test_a_task_that_ends_by_itself_is_reported_with_its_name(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = supervisor(registry)
    for work in (forever, returns, raises):
        tasks.start(work.__name__, work())
    assert tasks.ended == {}
    await asyncio.sleep(0.01)
    assert tasks.ended == {"returns": "returned", "raises": "ValueError('broken')"}
    running = [
        registry.get_sample_value("running", {"task": name})
        for name in ("forever", "returns", "raises")
    ]
    assert running == [1, 0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "background task returns has ended: returned",
        "background task raises has ended: ValueError('broken')",
    ]
    await tasks.stop()


async def test_stopping_is_not_reported(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = supervisor(registry)
    tasks.start("forever", forever())
    await tasks.stop()
    assert tasks.ended == {}
    assert not caplog.records
