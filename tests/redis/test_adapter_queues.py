"""Jobs of LoRA adapters: claimed in turns, and not more adapters than the engine can run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest
from redis import Redis

from shared.fleet.worker_answer import WorkerAnswer
from shared.job.advertised_slots import UNKNOWN, SlotUpdate
from shared.job.lanes import SUSPECT_LANE, adapter_queue
from shared.store.redis import claim_connection, keys
from shared.store.redis.claim_connection import ClaimConnection
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import LEASE_S, POOL, WORKER, submit
from tests.redis.worker_loops import chat, serving
from worker.core.adapter_claims import AdapterQueues
from worker.core.adapters import Adapters
from worker.core.home_shards import HomeShards
from worker.core.membership import Membership
from worker.core.queue_consumer import QueueConsumer
from worker.core.registration import Registration
from worker.core.slot_adverts import AdvertisedSlots

HOT, COLD, THIRD = (adapter_queue(POOL, name) for name in ("hot", "cold", "third"))
DEADLINE_S = 60.0
"""Less than one blocking pop: a consumer that is not woken fails the test."""


@pytest.fixture(autouse=True)
def long_pops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_connection, "BLOCK_S", 5 * DEADLINE_S)


class ClaimingWorker:
    """A consumer, and the jobs that its worker runs."""

    def __init__(self, consumer: QueueConsumer, queues: AdapterQueues, runs: dict[str, str]):
        self.consumer = consumer
        self.queues = queues
        self.runs = runs
        """Ids -> queues."""

    async def claim(self, count: int, names: dict[str, str]) -> str:
        """The queues of the jobs that one claim brings, by their first letters."""
        jobs = await self.consumer.claim(count)
        self.runs |= {job.id: names[job.id] for job in jobs}
        return "".join(names[job.id].removeprefix(f"{POOL}+")[0] for job in jobs)


@contextlib.asynccontextmanager
async def claims(queue: JobQueue, places: int) -> AsyncIterator[ClaimingWorker]:
    runs = dict[str, str]()
    queues = AdapterQueues(queue, POOL, places, runs)
    member = Membership(queue, POOL, WORKER, LEASE_S)
    consumer = QueueConsumer(
        ClaimConnection(queue, range(1), WORKER, LEASE_S),
        POOL,
        AdvertisedSlots(member, lambda: 0, HomeShards(member)),
        queues,
        on_suspects=lambda: None,
        overcommitted=lambda: 0,
    )
    try:
        yield ClaimingWorker(consumer, queues, runs)
    finally:
        await consumer.close()


async def queued(queue: JobQueue, **counts: int) -> dict[str, str]:
    """Submit so many jobs to each queue; job id -> queue."""
    by_name = {"pool": POOL, "hot": HOT, "cold": COLD, "third": THIRD}
    names = {}
    for name, count in counts.items():
        for _ in range(count):
            names[(await submit(queue, pool=by_name[name])).id] = by_name[name]
    return names


async def test_queues_take_turns(queue: JobQueue) -> None:
    names = await queued(queue, hot=20, cold=2, pool=2)
    async with claims(queue, places=4) as worker:
        worker.queues.set_names([HOT, COLD])
        found = [await worker.claim(1, names) for _ in range(8)]
    assert sorted(found[:3]) == sorted(found[3:6]) == ["c", "h", "p"]
    assert found[6:] == ["h", "h"]


async def test_an_adapter_without_a_place_waits_in_redis_until_another_has_ended(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.adapter_turns.TURN_S", 0.0)
    names = await queued(queue, hot=9)
    async with claims(queue, places=1) as worker:
        worker.queues.set_names([HOT, COLD])
        assert await worker.claim(3, names) == "hhh"
        names |= await queued(queue, cold=1)
        assert await worker.claim(3, names) == ""
        assert worker.consumer.held_back
        worker.runs.clear()
        assert await worker.claim(3, names) == "c"
        assert worker.consumer.held_back  # the other one waits for its place now
        worker.runs.clear()
        assert await worker.claim(3, names) == "hhh"
        assert not worker.consumer.held_back


async def test_one_claim_starts_no_more_adapters_than_have_a_place(queue: JobQueue) -> None:
    names = await queued(queue, hot=1, cold=1, third=1)
    async with claims(queue, places=2) as worker:
        worker.queues.set_names([HOT, COLD, THIRD])
        assert len(await worker.claim(8, names)) == 2
        assert worker.consumer.held_back


async def test_a_job_of_an_adapter_wakes_a_waiting_worker(queue: JobQueue) -> None:
    async with claims(queue, places=2) as worker:
        worker.queues.set_names([HOT])
        assert await worker.claim(8, {}) == ""
        names = await queued(queue, hot=1)
        async with asyncio.timeout(DEADLINE_S):
            await worker.consumer.wait_for_wake_up()
        assert await worker.claim(8, names) == "h"


async def test_a_waiting_worker_claims_from_a_new_adapters_queue_at_once(queue: JobQueue) -> None:
    async with claims(queue, places=2) as worker:
        assert await worker.claim(8, {}) == ""
        names = await queued(queue, hot=1)
        assert worker.queues.set_names([HOT])
        async with asyncio.timeout(DEADLINE_S):
            await worker.consumer.wake()
            await worker.consumer.wait_for_wake_up()
        assert await worker.claim(8, names) == "h"
        assert not worker.queues.set_names([HOT])


async def test_a_wake_up_goes_back_to_the_list_that_it_came_from(
    queue: JobQueue, store: Redis
) -> None:
    async with claims(queue, places=2) as worker:
        worker.queues.set_names([HOT])
        assert await worker.claim(8, {}) == ""
        await queued(queue, hot=1)
        async with asyncio.timeout(DEADLINE_S):
            await worker.consumer.wait_for_wake_up()
        assert store.llen(keys.wake_ups(0, HOT)) == 0
        await worker.consumer.forward_wake_up()
        assert store.llen(keys.wake_ups(0, HOT)) == 1


async def test_a_worker_with_adapters_advertises_no_slots(
    queue: JobQueue, redis_url: str, store: Redis
) -> None:
    def advertised() -> float:
        return sum(
            score for _, score in store.zrange(keys.advertised(0, POOL), 0, -1, withscores=True)
        )

    async def many() -> bool:
        return advertised() == 8

    async def none() -> bool:
        return advertised() == 0

    async with serving(queue, slots=8) as loop:
        await eventually(many, "slots are advertised")
        await loop.read_adapter_queues([HOT])
        await eventually(none, "they are withdrawn")
        for pool in (HOT, POOL):
            job = await submit(queue, pool=pool, body=chat(2), stream=False)

            async def done(job_id: str = job.id) -> bool:
                found = await queue.get(job_id)
                return found is not None and found.state.terminal

            await eventually(done, f"the job of {pool} has ended", DEADLINE_S)


async def test_suspects_of_an_adapter_wait_in_its_pools_lane(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue, pool=HOT)
    for n in range(2):
        acquired = await queue.acquire(0, f"w-{n}", 1, LEASE_S, SlotUpdate(HOT, "", 0, UNKNOWN))
        (leased,) = acquired.jobs
        await queue.release([leased], "engine_died", blame=True)
    assert store.zrange(keys.waiting(0, POOL, SUSPECT_LANE), 0, -1) == [job.id.encode()]


async def test_what_is_remembered_of_adapters_ends_with_them(
    queue: JobQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> WorkerAnswer:
        return WorkerAnswer(400, "no such path")

    monkeypatch.setattr("worker.core.loop.operate", fails)
    async with serving(queue, slots=2) as loop:
        member, unused = Membership(queue, POOL, WORKER, LEASE_S), cast(Registration, None)
        adapters = Adapters(member, loop._engine, loop, unused)
        for n in range(5):
            await adapters.load({"lora_name": f"{n}", "lora_path": "/x"})
            loop.adapter_queues.claimed(adapter_queue(POOL, f"{n}"), [])
        loop.adapter_queues.claimed(POOL, [])
        await adapters.follow({"3": {"lora_name": "3", "lora_path": "/x"}})
        assert list(adapters._retries) == ["3"]  # it is desired, and tried again later
        assert list(loop.adapter_queues._served) == [POOL]


async def test_queues_of_adapters_that_nobody_uses_are_forgotten(
    queue: JobQueue, store: Redis
) -> None:
    names = [adapter_queue(POOL, f"adapter-{n}") for n in range(30)]
    for name in (POOL, *names):
        await queue.acquire(0, WORKER, 1, LEASE_S, SlotUpdate(name, "", 0, UNKNOWN))
    waiting = await submit(queue, pool=names[0])
    done = await submit(queue, pool=names[1])
    await queue.cancel(done.id, done.tenant)
    assert store.scard(keys.pool_names(0)) == 31
    await queue.sweep(0)
    assert store.smembers(keys.pool_names(0)) == {POOL.encode(), names[0].encode()}
    assert not store.keys(f"{keys.base(0)}*{names[1]}*")
    leased = await queue.acquire(0, WORKER, 1, LEASE_S, SlotUpdate(names[0], "", 0, UNKNOWN))
    assert [job.id for job in leased.jobs] == [waiting.id]
    again = await submit(queue, pool=names[1])
    leased = await queue.acquire(0, WORKER, 1, LEASE_S, SlotUpdate(names[1], "", 0, UNKNOWN))
    assert [job.id for job in leased.jobs] == [again.id]
