"""Claims: a worker hears of every job, claims it at once, and keeps nobody else's wake-up list."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from shared.platform.redis_client import RedisConnectionError, connect_blocking
from shared.protocol import keys
from shared.protocol.job import new_job_id
from shared.protocol.scripts.acquire import Acquired
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import LEASE_S, POOL, open_queue, submit
from tests.waiting import eventually
from worker.claim.advertised_slots import AdvertisedSlots
from worker.claim.queue_consumer import QueueConsumer

DEADLINE_S = 3.0
"""Less than one wait for the wake-up list: who is not woken fails the test."""


@contextlib.asynccontextmanager
async def opened(queue: JobQueue, url: str, worker: str = "w-1") -> AsyncIterator[QueueConsumer]:
    redis = connect_blocking(url)
    offers = AdvertisedSlots(
        lambda: 0, pool=POOL, worker=worker, lease_s=LEASE_S, shards=queue.shards
    )
    claims = QueueConsumer(
        queue, redis, pool=POOL, worker=worker, lease_s=LEASE_S, advertised_slots=offers
    )
    try:
        yield claims
    finally:
        await claims.close()
        await redis.aclose()


@pytest.fixture
async def claims(queue: JobQueue, redis_url: str) -> AsyncIterator[QueueConsumer]:
    async with opened(queue, redis_url) as claims:
        yield claims


@pytest.mark.parametrize("spare", [1, 0])
async def test_a_job_that_comes_later_wakes_who_waits(
    claims: QueueConsumer, queue: JobQueue, *, spare: int
) -> None:
    for _ in range(20):
        assert await claims.claim(8, left_over=spare) == []
        job = await submit(queue)
        async with asyncio.timeout(DEADLINE_S):
            await claims.wait_for_wake_up()
        assert [each.id for each in await claims.claim(8, left_over=spare)] == [job.id]
        async with asyncio.timeout(DEADLINE_S):  # an old ring, at most
            await queue.wake_worker(0, POOL)
            await claims.wait_for_wake_up()


async def test_who_can_take_more_does_not_wait_for_the_wake_ups(
    claims: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    for _ in range(20):
        await submit(queue)
    store.delete(keys.wake_ups(0, POOL))
    async with asyncio.timeout(DEADLINE_S):
        sizes = [len(await claims.claim(8, left_over=1)) for _ in range(3)]
    assert sizes == [8, 8, 4]


async def test_who_has_no_slot_left_lets_the_wake_ups_ring_for_others(
    claims: QueueConsumer, queue: JobQueue, redis_url: str
) -> None:
    async with opened(queue, redis_url, "w-2") as other:
        assert await claims.claim(8, left_over=1) == await other.claim(8, left_over=1) == []
        waiting = [asyncio.create_task(each.wait_for_wake_up()) for each in (claims, other)]
        await submit(queue)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await (claims if waiting[0].done() else other).forward_wake_up()
            await asyncio.wait(waiting)


async def test_nothing_is_passed_on_when_the_wake_ups_did_not_ring(
    claims: QueueConsumer, store: Redis
) -> None:
    await claims.claim(8, left_over=1)
    await claims.forward_wake_up()
    assert store.llen(keys.wake_ups(0, POOL)) == 0


async def test_scripts_that_redis_has_forgotten_are_loaded_again(
    claims: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    job = await submit(queue)
    with contextlib.suppress(ResponseError):  # before Redis 7 there are none
        store.function_flush()
    store.script_flush()
    async with asyncio.timeout(DEADLINE_S):
        assert [each.id for each in await claims.claim(8, left_over=1)] == [job.id]


async def test_a_lost_connection_is_told_once_and_made_anew(
    claims: QueueConsumer, queue: JobQueue, store: Redis
) -> None:
    await claims.claim(8, left_over=1)
    blocked = [each["id"] for each in store.client_list() if each["cmd"] == "blpop"]

    async def blocks() -> bool:
        blocked[:] = [each["id"] for each in store.client_list() if each["cmd"] == "blpop"]
        return bool(blocked)

    await eventually(blocks, "the worker waits")
    store.client_kill_filter(_id=blocked[0])
    with pytest.raises(RedisConnectionError):
        await claims.wait_for_wake_up()
    job = await submit(queue)
    assert [each.id for each in await claims.claim(8, left_over=1)] == [job.id]


async def test_all_shards_are_claimed_from_and_listened_to(redis_url: str) -> None:
    async with open_queue(redis_url, shards=3) as queue, opened(queue, redis_url) as claims:
        for shard in (0, 1, 2, 2, 1, 0):
            assert await claims.claim(8, left_over=1) == []
            job = await submit(queue, id=f"job_{shard:03x}{new_job_id(1)[7:]}")
            async with asyncio.timeout(DEADLINE_S):
                await claims.wait_for_wake_up()
            assert [each.id for each in await claims.claim(1, left_over=1)] == [job.id]


async def test_jobs_of_one_shard_are_not_lost_with_the_claim_on_the_next(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_queue(redis_url, shards=2) as queue, opened(queue, redis_url) as claims:
        job = await submit(queue, id=new_job_id(1))
        start_acquire, calls = queue.start_acquire, list[Any]()

        async def fails(reply: Coroutine[Any, Any, Acquired]) -> Acquired:
            await reply
            raise RedisConnectionError("away")

        def fails_on_the_second(*args: Any) -> Coroutine[Any, Any, Acquired]:
            reply = start_acquire(*args)
            calls.append(args)
            return reply if len(calls) == 1 else fails(reply)

        monkeypatch.setattr(queue, "start_acquire", fails_on_the_second)
        assert [each.id for each in await claims.claim(8, left_over=1)] == [job.id]
        await queue.wake_worker(0, POOL)
        with pytest.raises(RedisConnectionError):
            await claims.claim(8, left_over=1)


async def test_a_claim_that_could_not_be_sent_does_not_stop_the_next(
    claims: QueueConsumer, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RedisConnectionError("lost meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr(claims._connection, "send", broken)
        with pytest.raises(RedisConnectionError):
            await claims.claim(8)
    job = await submit(queue)
    async with asyncio.timeout(DEADLINE_S):
        assert [each.id for each in await claims.claim(8)] == [job.id]
