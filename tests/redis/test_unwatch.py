"""Jobs whose clients have left: unwatched, cancelled after a grace."""

from __future__ import annotations

import asyncio

from gateway.core.log_event import ReadMode
from prometheus_client import CollectorRegistry
from redis import Redis

from gateway.core.relay import Relay
from shared.job.job import new_job_id
from shared.job.states import JobState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    GATEWAY,
    answer,
    finish,
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
    assert await queue.expire(0) == (1, {})
    assert not store.exists(UNATTENDED)
    await queue.unwatch(leased.id, GATEWAY)
    assert await state_of(queue, leased.id) == ("completed", "")


async def test_jobs_that_are_gone_are_forgotten(queue: JobQueue, store: Redis) -> None:
    await queue.unwatch(new_job_id(1), GATEWAY)
    assert store.keys() == []
    store.zadd(UNATTENDED, {new_job_id(1): 1})
    assert await queue.expire(0) == (1, {})
    assert store.keys() == []


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
