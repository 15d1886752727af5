"""What `flotilla up --autoscale` does with a decision, with stand-ins for worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from redis import Redis

from gateway.launcher.child import Command
from gateway.launcher.scaler import Scaler
from gateway.launcher.service import GaveUpError, Service
from gateway.launcher.worker_children import Workers
from shared.fleet.scale_decisions import Limits, Observation, Scale
from shared.job.states import WorkerState
from shared.platform.tasks import end
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.operators import ScaleStore
from shared.store.queue import Queue
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import POOL
from tests.unit.worker_info import worker as worker_info


class Process:
    """A stand-in for a Service: runs until it is stopped or made to fail."""

    def __init__(self, name: str, command: Any) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stops: list[float] = []
        self.command: Command = command()

    async def run(self) -> None:
        await self.end

    async def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)


class Fleet:
    """A scaler, the services it started, and helpers for both."""

    def __init__(self, queue: Queue, **settings: Any) -> None:
        self.registry = Registry(queue.servers.primary)
        self.store = ScaleStore(queue)
        self.output: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.workers = Workers(
            Settings(worker_port=0, **settings),
            lambda name, command, _: Process(name, command),  # type: ignore[arg-type, return-value]
            lambda **changes: Command(("worker",), {k: str(v) for k, v in changes.items()}),
            ["0", "1"],
        )
        self.scaler = Scaler(
            self.workers,
            POOL,
            queue,
            start=self.start,
            grace_s=45,
            say=self.output.append,
        )

    def start(self, service: Service, run: Coroutine[None, None, None]) -> None:
        self.tasks.append(asyncio.create_task(run))

    def process(self, number: int) -> Any:
        return self.workers.services[number]

    @property
    def numbers(self) -> list[int]:
        return sorted(self.workers.services)

    async def decide(self, wanted: int, *, ago_s: float = 0.0) -> None:
        now_s, _ = await self.store.read([])
        seen = Observation(now_s - ago_s, 0, 0.0, 0, None, 0, 0, 0, None, None)
        scale = Scale(POOL, "m", wanted, "because", seen, Limits(0, 9, 120, 300), 2.0)
        await self.store.write(scale, None)

    async def announce(self, number: int, **changes: Any) -> None:
        info = worker_info(self.workers.ids[number], pool=POOL, **changes)
        await self.registry.announce(info)
        self.process(number).ready.set()

    async def act(self, wanted: int) -> list[int]:
        await self.decide(wanted)
        await self.scaler.act()
        await asyncio.sleep(0)  # lets the requested services start
        return self.numbers


@pytest.fixture
async def fleet(queue: Queue) -> AsyncIterator[Fleet]:
    fleet = Fleet(queue)
    yield fleet
    await end(fleet.tasks)


async def test_the_least_busy_one_is_drained_and_its_number_is_free_again(fleet: Fleet) -> None:
    await fleet.act(3)
    for number, jobs in ((1, 4), (2, 0), (3, 7)):
        await fleet.announce(number, jobs=jobs)
    first_id = fleet.workers.ids[2]
    drained = fleet.process(2)
    assert await fleet.act(2) == [1, 2, 3]
    await fleet.act(2)  # it has not announced yet that it is draining
    assert drained.stops == [45]
    assert await fleet.act(3) == [1, 2, 3, 4]  # a draining worker takes no jobs
    drained.end.set_result(None)

    async def gone() -> bool:
        return fleet.numbers == [1, 3, 4]

    await eventually(gone, "it has ended for good")
    await fleet.announce(4)
    assert await fleet.act(4) == [1, 2, 3, 4]
    assert fleet.workers.ids[2] != first_id


async def test_a_worker_that_loads_is_never_ended(fleet: Fleet) -> None:
    await fleet.act(2)
    await fleet.announce(1, state=WorkerState.STARTING)
    await fleet.act(0)
    assert [fleet.process(number).stops for number in (1, 2)] == [[], []]
    await fleet.announce(1)
    await fleet.act(0)
    assert [fleet.process(number).stops for number in (1, 2)] == [[45], []]


async def test_an_autoscaler_without_decisions_changes_nothing(fleet: Fleet, store: Redis) -> None:
    await fleet.scaler.act()
    assert fleet.numbers == []
    await fleet.decide(2, ago_s=60)
    await fleet.scaler.act()
    assert fleet.numbers == []
    store.hset(keys.first(keys.DOCUMENTS, "scale"), POOL, "{")
    await fleet.scaler.act()
    assert fleet.numbers == []


async def test_a_worker_that_never_serves_ends_the_fleet_if_none_ever_did(fleet: Fleet) -> None:
    await fleet.act(1)
    fleet.process(1).end.set_exception(GaveUpError("worker-1: it never became ready"))
    with pytest.raises(GaveUpError):
        await fleet.tasks[0]


async def test_without_room_for_one_more_the_others_go_on(fleet: Fleet) -> None:
    await fleet.act(1)
    await fleet.announce(1)
    assert await fleet.act(2) == [1, 2]
    fleet.process(2).end.set_exception(GaveUpError("worker-2: it never became ready"))
    await fleet.tasks[1]
    assert await fleet.act(2) == [1]
    assert "worker-2: it never became ready; continuing with 1" in fleet.output[-1]
    fleet.scaler._room = (0.0, 1)  # as if that had been long ago
    await fleet.act(2)
    assert await fleet.act(2) == [1, 2]
