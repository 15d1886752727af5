"""Acquire: best lane first, never more than asked for, each job to one worker."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.depths import position
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    entries_of,
    expire_lease,
    lease,
    output,
    pending,
    submit,
)


async def test_the_lanes_come_in_their_order_and_each_in_its_own(queue: JobQueue) -> None:
    lanes = [FLEX, DEFAULT, PRIORITY, FLEX, DEFAULT, PRIORITY]
    ids = [(await submit(queue, lane=lane)).id for lane in lanes]
    got = [job.id for job in await claim(queue)]
    assert got == [ids[i] for i in (2, 5, 1, 4, 0, 3)]


async def test_released_jobs_go_before_all_others(queue: JobQueue) -> None:
    flex = await submit(queue, lane=FLEX)
    await queue.release(await claim(queue), "drained", blame=False)
    priority = await submit(queue, lane=PRIORITY)
    assert [job.id for job in await claim(queue)] == [flex.id, priority.id]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 9])
async def test_never_more_than_asked_for(queue: JobQueue, store: Redis, count: int) -> None:
    for lane in (PRIORITY, DEFAULT, FLEX, DEFAULT, FLEX):
        await submit(queue, lane=lane)
    assert len(await claim(queue, count)) == min(count, 5)
    assert pending(store) == min(count, 5)


async def test_no_job_is_given_twice(queue: JobQueue) -> None:
    ids = [(await submit(queue)).id for _ in range(6)]
    first = await claim(queue, 4, worker="a")
    second = await claim(queue, 4, worker="b")
    assert [job.id for job in first + second] == ids
    assert len({job.lease_id for job in first + second}) == 6


async def test_a_claimed_job_and_its_record(queue: JobQueue) -> None:
    job = await submit(queue, body=b"\x00\xff", endpoint="/e")
    leased = await claim_one(queue)
    assert (leased.id, leased.body, leased.endpoint) == (job.id, b"\x00\xff", "/e")
    assert leased.tenant == TENANT
    assert (leased.attempt, leased.shard, leased.stream, len(leased.lease_id)) == (1, 0, True, 16)
    assert 0 <= leased.waited_s < 60
    seen = await queue.get(job.id)
    assert seen is not None
    assert seen.state is JobState.IN_PROGRESS
    assert [a.worker for a in seen.attempts] == [WORKER]
    assert await position(queue, seen) is None


async def test_jobs_of_another_pool_are_left_alone(queue: JobQueue) -> None:
    await submit(queue, pool="other")
    assert await claim(queue) == []


async def test_cancelled_entries_are_skipped_and_cleared(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(20)]
    for job in jobs[:-1]:
        await queue.cancel(job.id, TENANT)
    assert [job.id for job in await claim(queue, 1)] == [jobs[-1].id]
    assert store.xlen(keys.queue(0, POOL, DEFAULT)) == 1
    assert pending(store) == 1


async def test_many_cancelled_jobs_are_cleared_over_several_calls(
    queue: JobQueue,
) -> None:
    for _ in range(70):
        await queue.cancel((await submit(queue)).id, TENANT)
    wanted = await submit(queue)
    got = await claim(queue, 1) + await claim(queue, 1)
    assert [job.id for job in got] == [wanted.id]


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


async def test_the_entry_of_a_vanished_job_is_dropped(queue: JobQueue, store: Redis) -> None:
    lost = await submit(queue)
    store.delete(keys.job(0, lost.id))
    good = await submit(queue)
    assert [job.id for job in await claim(queue, 1)] == [good.id]
    assert entries_of(store, lost.id) == []


async def test_an_entry_that_is_not_the_jobs_own_is_dropped(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue)
    store.xadd(keys.queue(0, POOL, PRIORITY), {"job": job.id}, id="1-1")
    assert [each.id for each in await claim(queue)] == [job.id]
    assert entries_of(store, job.id) == [DEFAULT]


async def test_a_missing_group_is_made_and_misses_nothing(queue: JobQueue, store: Redis) -> None:
    first, second = await submit(queue), await submit(queue)
    assert store.xinfo_groups(keys.queue(0, POOL, DEFAULT)) == []
    assert [job.id for job in await claim(queue, 1)] == [first.id]
    store.xgroup_destroy(keys.queue(0, POOL, DEFAULT), keys.GROUP)
    # The first job's entry is read again; the job is in progress, so it is not leased twice.
    assert [job.id for job in await claim(queue)] == [second.id]


async def test_an_empty_pool_has_no_job(queue: JobQueue) -> None:
    assert await claim(queue) == []


@pytest.mark.parametrize(("waiting", "left"), [(2, 0), (4, 4)])
async def test_wake_ups_are_deleted_when_no_job_is_left(
    queue: JobQueue, store: Redis, waiting: int, left: int
) -> None:
    for _ in range(waiting):
        await submit(queue)
    await claim(queue, 3)
    assert store.llen(keys.wake_ups(0, POOL)) == left


async def test_only_watchers_receive_the_start(
    queue: JobQueue, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    await submit(queue)
    watched = await submit(queue, gateway="")
    await queue.watch(watched.id, "gw-2", follow=True)
    await claim(queue)
    assert gateway.frames() == []
    assert other_gateway.frames() == [
        (watched.id.encode(), 0, FrameKind.STARTED, b"", WORKER.encode())
    ]


async def test_a_lease_has_the_gateways_that_watch(queue: JobQueue) -> None:
    unwatched, waited_for, watched = [
        await submit(queue, gateway=g) for g in ("", GATEWAY, GATEWAY)
    ]
    await queue.watch(watched.id, "gw-2", follow=True)
    watchers = {job.id: (job.watchers, job.watched) for job in await claim(queue)}
    assert watchers == {
        unwatched.id: ("", False),
        waited_for.id: (GATEWAY, False),
        watched.id: (f"{GATEWAY} gw-2", True),
    }


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
    assert [e.items for e in await queue.entries(second.id, 0)] == [(b"x",)]


async def test_the_fence_token_of_one_worker_is_not_anothers(queue: JobQueue) -> None:
    await queue.renew(0, WORKER, "", LEASE_S, [])
    await submit(queue)
    assert (await claim_one(queue, worker="w-2")).fence_token == ""


async def test_every_lease_of_a_job_is_a_generation_of_its_own(queue: JobQueue) -> None:
    await submit(queue)
    generations = []
    for _ in range(3):
        job = await claim_one(queue)
        generations.append((job.generation, job.attempt))
        await queue.release([job], "drained", blame=False)
    assert generations == [(1, 1), (2, 1), (3, 1)]


async def test_a_recreated_group_does_not_lose_a_job_in_progress(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    store.xgroup_destroy(keys.queue(0, POOL, DEFAULT), keys.GROUP)
    assert await claim(queue, worker="w-2") == []
    assert entries_of(store, job.id) == [DEFAULT]
    expire_lease(store, job)
    assert await queue.reap(0, 0.0) == {job.id: "queued"}
