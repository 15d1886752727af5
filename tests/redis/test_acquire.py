"""Acquire: what it leaves in Redis. What callers see is in tests/store."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    entries_of,
    lease,
    log_entries,
    output,
    pending,
    submit,
)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 9])
async def test_never_more_than_asked_for(queue: JobQueue, store: Redis, count: int) -> None:
    for lane in (PRIORITY, DEFAULT, FLEX, DEFAULT, FLEX):
        await submit(queue, lane=lane)
    assert len(await claim(queue, count)) == min(count, 5)
    assert pending(store) == min(count, 5)


async def test_cancelled_entries_are_skipped_and_cleared(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(20)]
    for job in jobs[:-1]:
        await queue.cancel(job.id, TENANT)
    assert [job.id for job in await claim(queue, 1)] == [jobs[-1].id]
    assert store.xlen(keys.queue(0, POOL, DEFAULT)) == 1
    assert pending(store) == 1


async def test_a_job_whose_deadline_has_passed_is_never_started(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    late = await submit(queue, deadline_s=1e-6)
    good = await submit(queue)
    assert [job.id for job in await claim(queue, 1)] == [good.id]
    job = await queue.get(late.id)
    assert job is not None
    assert (job.state, job.error_code) == (JobState.EXPIRED, "deadline_exceeded")
    assert job.attempts == ()
    assert entries_of(store, late.id) == []
    assert [(f[0], f[2]) for f in gateway.frames()] == [(late.id.encode(), FrameKind.ENDED)]


async def test_a_vanished_job_waits_no_more_and_its_entry_is_dropped(
    queue: JobQueue, store: Redis
) -> None:
    lost = await submit(queue)
    store.delete(keys.job(0, lost.id))
    good = await submit(queue)
    assert [job.id for job in await claim(queue, 1)] == [good.id]
    assert not store.exists(keys.waiting(0, POOL, DEFAULT))
    assert await queue.check(0) == {}
    assert entries_of(store, lost.id) == []


async def test_an_entry_that_is_not_the_jobs_own_is_dropped(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue)
    store.xadd(keys.queue(0, POOL, PRIORITY), {"job": job.id}, id="1-1")
    assert [each.id for each in await claim(queue)] == [job.id]
    assert await claim(queue) == []
    assert await queue.check(0) == {}
    assert entries_of(store, job.id) == [DEFAULT]


async def test_a_missing_group_is_made_and_misses_nothing(queue: JobQueue, store: Redis) -> None:
    first, second = await submit(queue), await submit(queue)
    assert store.xinfo_groups(keys.queue(0, POOL, DEFAULT)) == []
    assert [job.id for job in await claim(queue, 1)] == [first.id]
    store.xgroup_destroy(keys.queue(0, POOL, DEFAULT), keys.GROUP)
    assert [job.id for job in await claim(queue)] == [second.id]


@pytest.mark.parametrize(("waiting", "left"), [(2, 0), (4, 4)])
async def test_wake_ups_are_deleted_when_no_job_is_left(
    queue: JobQueue, store: Redis, waiting: int, left: int
) -> None:
    for _ in range(waiting):
        await submit(queue)
    await claim(queue, 3)
    assert store.llen(keys.wake_ups(0, POOL)) == left


async def test_a_claimed_job_may_be_written_under_the_workers_fence_token(queue: JobQueue) -> None:
    await submit(queue)
    first = await claim_one(queue)
    assert first.fence_token == "", "it has none before it renews"
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [first])
    await submit(queue)
    second = await claim_one(queue)
    assert second.fence_token == renewal.fence_token != ""
    step = make_step([output(second, 1)])
    assert await queue.emit(0, WORKER, renewal.fence_token, step) == {}
    assert [e.items for e in await log_entries(queue, second.id, 0)] == [(b"x",)]


async def test_a_recreated_group_does_not_lose_a_job_in_progress(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    store.xgroup_destroy(keys.queue(0, POOL, DEFAULT), keys.GROUP)
    assert await claim(queue, worker="w-2") == []
    assert await queue.check(0) == {job.id: "queued"}
    assert (await claim_one(queue, worker="w-2")).id == job.id
