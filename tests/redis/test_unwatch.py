"""Jobs whose clients have left: unwatched, abandoned by a dead gateway, cancelled after a grace."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from gateway.core.log_event import ReadMode
from gateway.core.relay import Relay
from shared.job.job import new_job_id
from shared.job.states import JobState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    GATEWAY,
    LANES,
    POOL,
    answer,
    claim,
    entries_of,
    finish,
    gateway_messages,
    lease,
    submit,
)

GRACE_S = 60.0
UNATTENDED = keys.base(0) + keys.UNATTENDED


async def state_of(queue: JobQueue, job_id: str) -> tuple[str, str]:
    job = await queue.get(job_id)
    assert job is not None
    return job.state, job.error_code


def watchers(store: Redis, job_id: str) -> bytes | None:
    return store.hget(keys.job(0, job_id), "watchers")


def let_the_grace_pass(store: Redis) -> None:
    for job_id in store.zrange(UNATTENDED, 0, -1):
        store.zadd(UNATTENDED, {job_id: 1})


async def test_a_job_that_another_gateway_watches_stays(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue, keep_s=GRACE_S)
    await queue.watch(job.id, "gw-2", follow=False)
    await queue.unwatch(job.id, GATEWAY)
    await queue.unwatch(job.id, "gw-1 gw-2")
    assert watchers(store, job.id) == b"gw-2"
    assert not store.exists(UNATTENDED)


async def test_an_ended_job_stays_ended(queue: JobQueue, store: Redis) -> None:
    leased = await lease(queue, keep_s=GRACE_S)
    await queue.unwatch(leased.id, GATEWAY)
    assert await finish(queue, leased, 1, answer()) == "ok"
    let_the_grace_pass(store)
    assert await queue.cancel_unattended(0) == (1, [])
    assert not store.exists(UNATTENDED)
    await queue.unwatch(leased.id, GATEWAY)
    assert await state_of(queue, leased.id) == ("completed", "")


async def test_jobs_that_are_gone_are_forgotten(queue: JobQueue, store: Redis) -> None:
    await queue.unwatch(new_job_id(1), GATEWAY)
    assert store.keys() == []
    store.zadd(UNATTENDED, {new_job_id(1): 1})
    assert await queue.cancel_unattended(0) == (1, [])
    assert store.keys() == []


async def test_no_more_are_cancelled_in_one_call_than_asked_for(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(5):
        job = await submit(queue, keep_s=GRACE_S)
        await queue.unwatch(job.id, GATEWAY)
    let_the_grace_pass(store)
    assert [(await queue.cancel_unattended(0, 2))[0] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_all_jobs_of_a_dead_gateway_are_unwatched(
    queue: JobQueue, store: Redis, limit: int
) -> None:
    mine = [await submit(queue, keep_s=GRACE_S) for _ in range(4)]
    await claim(queue, count=2)  # some are leased, some wait
    mine += [await submit(queue, keep_s=GRACE_S, lane=lane) for lane in ("flex", "priority")]
    (retried,) = await claim(queue, count=1)
    await queue.release([retried], "drained", blame=False)
    kept = await submit(queue)
    others = await submit(queue, keep_s=GRACE_S, gateway="gw-12")
    shared = await submit(queue, keep_s=GRACE_S)
    await queue.watch(shared.id, "gw-12", follow=True)
    assert await queue.abandon(0, GATEWAY, limit) == len(mine) + 2
    assert {each.decode() for each in store.zrange(UNATTENDED, 0, -1)} == {j.id for j in mine}
    assert watchers(store, kept.id) == GATEWAY.encode()
    assert watchers(store, others.id) == watchers(store, shared.id) == b"gw-12"
    assert len([job for job in mine if entries_of(store, job.id)]) == len(mine)
    assert await queue.abandon(0, "gw-unknown", limit) == 0


async def test_a_gateway_that_receives_frames_is_not_gone(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue, keep_s=GRACE_S)
    with gateway_messages(store):
        assert await queue.abandon(0, GATEWAY) is None
    assert watchers(store, job.id) == GATEWAY.encode()


async def test_abandoned_jobs_without_a_grace_are_cancelled_while_the_queue_is_walked(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await submit(queue, keep_s=0.0) for _ in range(7)]
    assert await queue.abandon(0, GATEWAY, 2) == len(jobs)
    assert {await state_of(queue, job.id) for job in jobs} == {("cancelled", "unattended")}
    assert all(
        not store.exists(keys.queue(0, POOL, lane)) or not store.xlen(keys.queue(0, POOL, lane))
        for lane in LANES
    )


async def test_watching_and_unwatching_at_once_leaves_no_job_without_either(
    queue: JobQueue, store: Redis
) -> None:
    job = await submit(queue, keep_s=GRACE_S)
    for _ in range(20):
        await asyncio.gather(
            *(queue.watch(job.id, f"gw-{n}", follow=False) for n in range(4)),
            *(queue.unwatch(job.id, f"gw-{n}") for n in range(4)),
        )
        assert bool(watchers(store, job.id)) != bool(store.exists(UNATTENDED))
    assert (await queue.get(job.id)).state is JobState.QUEUED  # type: ignore[union-attr]


async def test_after_a_reconnect_a_gateway_watches_the_jobs_of_its_clients_again(
    queue: JobQueue, redis_url: str, store: Redis
) -> None:
    """It may have been taken for dead meanwhile."""
    relay = Relay(queue, queue.servers, GATEWAY, GatewayMetrics(CollectorRegistry()), 1000)
    running = asyncio.create_task(relay.run())
    try:
        await relay.connected()
        job, left = await submit(queue, keep_s=GRACE_S), await submit(queue, keep_s=GRACE_S)
        reader = relay.open(job.id, ReadMode.CHUNKS)
        for each in (job, left):
            await queue.unwatch(each.id, GATEWAY)
        assert store.zcard(UNATTENDED) == 2
        store.client_kill_filter(_type="pubsub")

        async def is_watched() -> bool:
            return watchers(store, job.id) == GATEWAY.encode()

        await eventually(is_watched, "it is watched")
        assert store.zrange(UNATTENDED, 0, -1) == [left.id.encode()]
        relay.close(reader)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
