"""The queue consumer is woken for every job, claims it at once, and forwards other wake-ups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from shared.job.fair_shares import ShareRules
from shared.job.job import new_job_id
from shared.job.placement import PlacementRules
from shared.job.replies import Acquired
from shared.store.interface import StoreUnavailable
from shared.store.redis import claim_connection, keys
from shared.store.redis.claim_connection import ClaimConnection
from shared.store.redis.job_queue import JobQueue
from tests.harness.servers import one_redis_only
from tests.harness.waiting import eventually
from tests.redis.conftest import LEASE_S, POOL, open_queue, submit
from worker.core.adapter_claims import AdapterQueues
from worker.core.charges import Charges
from worker.core.home_shards import HomeShards
from worker.core.membership import Membership
from worker.core.queue_consumer import QueueConsumer
from worker.core.slot_adverts import AdvertisedSlots

DEADLINE_S = 60.0
"""Less than one blocking pop: a consumer that is not woken fails the test."""


@pytest.fixture(autouse=True)
def long_pops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_connection, "BLOCK_S", 5 * DEADLINE_S)


@contextlib.asynccontextmanager
async def opened(
    queue: JobQueue, worker: str = "w-1", charges: Charges | None = None
) -> AsyncIterator[QueueConsumer]:
    member = Membership(queue, POOL, worker, LEASE_S)
    consumer = QueueConsumer(
        ClaimConnection(queue, queue.servers.groups[0], worker, LEASE_S, charges),
        POOL,
        AdvertisedSlots(member, lambda: 0, HomeShards(member)),
        AdapterQueues(queue, POOL, 0, ()),
        on_suspects=lambda: None,
        overcommitted=lambda: 0,
    )
    try:
        yield consumer
    finally:
        await consumer.close()


async def push_wake_up(consumer: QueueConsumer) -> None:
    await consumer._connection.push_back((keys.wake_ups(0, POOL).encode(), b"1"))


@pytest.fixture
async def consumer(queue: JobQueue) -> AsyncIterator[QueueConsumer]:
    async with opened(queue) as consumer:
        yield consumer


@pytest.mark.parametrize("spare", [1, 0])
async def test_a_new_job_wakes_a_waiting_consumer(
    consumer: QueueConsumer, queue: JobQueue, *, spare: int
) -> None:
    for _ in range(20):
        assert await consumer.claim(8, left_over=spare) == []
        job = await submit(queue)
        async with asyncio.timeout(DEADLINE_S):
            await consumer.wait_for_wake_up()
        assert [each.id for each in await consumer.claim(8, left_over=spare)] == [job.id]
        async with asyncio.timeout(DEADLINE_S):  # an old wake-up, at most
            await push_wake_up(consumer)
            await consumer.wait_for_wake_up()


async def test_a_consumer_does_not_wait_while_jobs_are_queued(
    consumer: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    for _ in range(20):
        await submit(queue)
    store.delete(keys.wake_ups(0, POOL))
    async with asyncio.timeout(DEADLINE_S):
        sizes = [len(await consumer.claim(8, left_over=1)) for _ in range(3)]
    assert sizes == [8, 8, 4]


async def test_a_consumer_without_a_free_slot_forwards_its_wake_up(
    consumer: QueueConsumer, queue: JobQueue
) -> None:
    async with opened(queue, "w-2") as other:
        assert await consumer.claim(8, left_over=1) == await other.claim(8, left_over=1) == []
        waiting = [asyncio.create_task(each.wait_for_wake_up()) for each in (consumer, other)]
        await submit(queue)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await (consumer if waiting[0].done() else other).forward_wake_up()
            await asyncio.wait(waiting)


async def test_without_a_wake_up_nothing_is_forwarded(
    consumer: QueueConsumer, store: Redis
) -> None:
    await consumer.claim(8, left_over=1)
    await consumer.forward_wake_up()
    assert store.llen(keys.wake_ups(0, POOL)) == 0


async def test_scripts_that_redis_has_lost_are_loaded_again(
    consumer: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    job = await submit(queue)
    store.function_flush()
    store.script_flush()
    async with asyncio.timeout(DEADLINE_S):
        assert [each.id for each in await consumer.claim(8, left_over=1)] == [job.id]


@one_redis_only
async def test_scripts_found_lost_by_another_call_during_a_claim_fail_the_claim_and_are_loaded(
    consumer: QueueConsumer, queue: JobQueue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(queue)
    settled = AdvertisedSlots.wait_until_settled

    async def meanwhile(slots: AdvertisedSlots, shard: int) -> None:
        await settled(slots, shard)
        monkeypatch.undo()
        with contextlib.suppress(ResponseError):
            store.function_flush()
        store.script_flush()
        with pytest.raises(StoreUnavailable):
            await queue.scripts(0).start("find_ended", 0, ())

    monkeypatch.setattr(AdvertisedSlots, "wait_until_settled", meanwhile)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(StoreUnavailable):
            await consumer.claim(8, left_over=1)
        assert [each.id for each in await consumer.claim(8, left_over=1)] == [job.id]


async def test_a_lost_connection_is_reported_once_and_replaced(
    consumer: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    await consumer.claim(8, left_over=1)
    blocked = [each["id"] for each in store.client_list() if each["cmd"] == "blpop"]

    async def blocks() -> bool:
        blocked[:] = [each["id"] for each in store.client_list() if each["cmd"] == "blpop"]
        return bool(blocked)

    await eventually(blocks, "the worker waits")
    store.client_kill_filter(_id=blocked[0])
    with pytest.raises(StoreUnavailable):
        await consumer.wait_for_wake_up()
    job = await submit(queue)
    assert [each.id for each in await consumer.claim(8, left_over=1)] == [job.id]


@one_redis_only
async def test_jobs_of_all_shards_are_claimed_and_wake_the_consumer(redis_url: str) -> None:
    async with open_queue(redis_url, shards=3) as queue, opened(queue) as consumer:
        for shard in (0, 1, 2, 2, 1, 0):
            assert await consumer.claim(8, left_over=1) == []
            job = await submit(queue, id=f"job_{shard:03x}{new_job_id(1)[7:]}")
            async with asyncio.timeout(DEADLINE_S):
                await consumer.wait_for_wake_up()
            assert [each.id for each in await consumer.claim(1, left_over=1)] == [job.id]


@one_redis_only
async def test_looks_do_not_change_whose_turn_a_shard_has(redis_url: str) -> None:
    async with open_queue(redis_url, shards=4) as queue, opened(queue) as consumer:
        claimed: list[int] = []
        for shard in range(4):
            for _ in range(4):
                await submit(queue, id=f"job_{shard:03x}{new_job_id(1)[7:]}")
        for _ in range(4):  # a full worker: a look follows each claim
            claimed += [job.shard for job in await consumer.claim(1)]
            assert consumer.next_look() is not None
        assert sorted(claimed) == [0, 1, 2, 3]
        assert {consumer.next_look() for _ in range(4)} == {0, 1, 2, 3}
        for first in (2, 2, 1):
            assert [job.shard for job in await consumer.claim(1, first=first)] == [first]


@one_redis_only
@pytest.mark.parametrize(("overtake_s", "order"), [(10.0, [0, 1, 0, 0, 1, 1]), (0.0, [0, 1] * 3)])
async def test_the_shard_whose_oldest_job_waits_longest_is_next(
    redis_url: str, store: Redis, overtake_s: float, order: list[int]
) -> None:
    """So far as the rules of placement let one overtake the other."""
    async with open_queue(redis_url, shards=2) as queue, opened(queue) as consumer:
        queue.placement = PlacementRules(overtake_s=overtake_s)
        for shard in (0, 1) * 3:
            job = await submit(queue, id=f"job_{shard:03x}{new_job_id(1)[7:]}")
            store.hincrby(keys.job(shard, job.id), "created_us", -5_000_000 * (shard == 0))
        assert [job.shard for _ in order for job in await consumer.claim(1)] == order


@one_redis_only
async def test_a_job_that_did_not_wait_long_leaves_its_shard_the_turn(
    redis_url: str, store: Redis
) -> None:
    """It is of a tenant with few jobs, beside one whose jobs wait long in all shards."""
    async with open_queue(redis_url, shards=2) as queue, opened(queue) as consumer:
        for shard, tenant, n in ((0, "a", 4), (1, "a", 4), (0, "b", 2)):
            for _ in range(n):
                name = f"job_{shard:03x}{new_job_id(1)[7:]}"
                job = await submit(queue, id=name, tenant=tenant)
                store.hincrby(keys.job(shard, job.id), "created_us", -60_000_000 * (tenant == "a"))
        claimed = [job for _ in range(6) for job in await consumer.claim(1)]
        assert [job.shard for job in claimed] == [0, 1] * 3
        assert "b" in [job.tenant for job in claimed[:4]]


@one_redis_only
async def test_where_tenants_share_free_slots_are_divided_among_the_shards(redis_url: str) -> None:
    charges = Charges(POOL, {}, ShareRules())
    async with (
        open_queue(redis_url, shards=4) as queue,
        opened(queue, charges=charges) as consumer,
    ):
        await submit(queue, id=new_job_id(1), tenant="a")
        (alone,) = await consumer.claim(1)
        charges.started(alone)
        assert consumer.parts == 1, "one tenant"
        for tenant in "ab":
            await submit(queue, id=new_job_id(1), tenant=tenant)
        (one_of_two,) = await consumer.claim(1)
        charges.started(one_of_two)
        assert consumer.parts == 4


async def test_jobs_of_one_shard_are_kept_if_the_claim_on_the_next_fails(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_queue(redis_url, shards=2) as queue, opened(queue) as consumer:
        job = await submit(queue, id=new_job_id(1))
        acquire, calls = consumer._connection.acquire, list[Any]()

        async def fails(reply: Coroutine[Any, Any, Acquired]) -> Acquired:
            await reply
            raise StoreUnavailable("away")

        def fails_on_the_second(*args: Any, **how: Any) -> Coroutine[Any, Any, Acquired]:
            reply = acquire(*args, **how)
            calls.append(args)
            return reply if len(calls) == 1 else fails(reply)

        monkeypatch.setattr(consumer._connection, "acquire", fails_on_the_second)
        assert [each.id for each in await consumer.claim(8, left_over=1)] == [job.id]
        await push_wake_up(consumer)
        with pytest.raises(StoreUnavailable):
            await consumer.claim(8, left_over=1)


async def test_a_claim_that_could_not_be_sent_does_not_prevent_the_next(
    consumer: QueueConsumer, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise StoreUnavailable("lost meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr(consumer._connection._connection, "send", broken)
        with pytest.raises(StoreUnavailable):
            await consumer.claim(8)
    job = await submit(queue)
    async with asyncio.timeout(DEADLINE_S):
        assert [each.id for each in await consumer.claim(8)] == [job.id]
