"""Jobs that lose their worker: they are requeued in front, or they fail; never on two workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

from shared.protocol import keys
from shared.protocol.frames import FrameKind
from shared.protocol.job import Job, LeasedJob
from shared.protocol.job_log import Delta, read_journal
from shared.protocol.lanes import DEFAULT, FLEX, RETRY_LANE
from shared.protocol.record import read_lease
from shared.protocol.scripts.emit import Fenced, make_step
from shared.protocol.states import JobState
from shared.queue.depths import position
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    LONG_AGO_MS,
    MAX_ATTEMPTS,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit,
    emit_and_flush,
    emit_token,
    entries_of,
    expire_lease,
    lease,
    log_flush,
    output,
    pending,
    renew,
    submit,
)


async def reap(queue: JobQueue, store: Redis, *jobs: LeasedJob) -> dict[str, str]:
    """Let the leases of these jobs run out and reap them; returns their states."""
    for job in jobs:
        expire_lease(store, job)
    return await queue.reap(0, LEASE_S)


async def seen(queue: JobQueue, job_id: str) -> Job:
    job = await queue.get(job_id)
    assert job is not None
    return job


async def test_an_unanswered_job_waits_again_in_front_of_all_others(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, lane=FLEX)
    later = await submit(queue, lane=FLEX)
    assert await reap(queue, store, job) == {job.id: "queued"}
    again = await seen(queue, job.id)
    assert (again.state, again.lane, again.started_at) == (JobState.QUEUED, FLEX, None)
    assert await position(queue, again) == 1
    assert await position(queue, await seen(queue, later.id)) == 2
    assert entries_of(store, job.id) == [RETRY_LANE]
    assert pending(store) == 0
    assert [each.id for each in await claim(queue)] == [job.id, later.id]


async def test_a_requeued_job_has_no_holder_no_log_and_adds_a_wake_up(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, stream=False)
    await emit(queue, [output(job, 2)], log_flushes=[log_flush(output(job, 1), 1)])
    assert len(await queue.entries(job.id, 0)) == 2
    store.delete(keys.wake_ups(0, POOL))
    await reap(queue, store, job)
    packed: Any = store.hget(keys.job(0, job.id), "lease")
    assert read_lease(packed)[:4] == ("", "", 1, 1)
    assert not store.exists(keys.log(0, job.id))
    assert await queue.entries(job.id, 0) == []
    assert await queue.last_entry(job.id) is None
    assert store.llen(keys.wake_ups(0, POOL)) == 1
    assert store.ttl(keys.job(0, job.id)) == -1


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x92\xa1a\xa1b"])
async def test_a_damaged_lease_does_not_stop_the_reaper(
    queue: JobQueue, store: Redis, damage: bytes
) -> None:
    """The job fails: without its generation, outputs of two attempts could be mixed."""
    damaged, other = await lease(queue, stream=False), await lease(queue, stream=False)
    for job in (damaged, other):
        expire_lease(store, job)
    store.hset(keys.job(0, damaged.id), "lease", damage)
    states = await queue.reap(0, LEASE_S)
    assert states == {other.id: "queued"}
    assert [job.id for job in await claim(queue)] == [other.id]
    seen = await queue.get(damaged.id)
    assert seen is not None
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")


async def test_output_of_an_earlier_lease_is_not_part_of_the_answer(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, stream=False)
    await emit_token(queue, job, 1, "old")
    await emit_token(queue, job, 2, "old")
    await queue.release([job], "drained", blame=False)
    again = await claim_one(queue)  # by the same worker, whose step log still has it
    assert await queue.entries(job.id, 0) == []
    await emit_token(queue, again, 1, "new")
    texts = [read_journal(entry.journal) for entry in await queue.entries(job.id, 0)]
    assert texts == [[Delta(0, 0, (1,), "new")]]
    await queue.cancel(job.id, TENANT)
    assert [(e.seq, e.end) for e in await queue.entries(job.id, 0)] == [(1, ""), (2, "cancelled")]


async def release(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    await queue.release([job], "drained", blame=False)


async def reap_one(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    await reap(queue, store, job)


async def reject_unreceived(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    expire_lease(store, job)
    await queue.reject_unreceived(POOL, WORKER, [], LEASE_S)


@pytest.mark.parametrize("lose", [release, reap_one, reject_unreceived])
@pytest.mark.parametrize("has_output", [True, False])
async def test_a_worker_learns_of_a_lost_job_before_it_writes_again(
    queue: JobQueue,
    store: Redis,
    lose: Callable[[JobQueue, Redis, LeasedJob], Awaitable[None]],
    has_output: bool,
) -> None:
    for _ in range(2):
        await submit(queue)
    lost, kept = await claim(queue)
    if has_output:
        await emit_token(queue, lost, 1)
    before = await queue.renew(0, WORKER, "", LEASE_S, [lost, kept])
    await lose(queue, store, lost)
    with pytest.raises(Fenced):
        await queue.emit(0, WORKER, before.fence_token, make_step([output(kept, 1)]))
    after = await queue.renew(0, WORKER, before.fence_token, LEASE_S, [lost, kept])
    assert after.lost == {lost.id: "failed" if has_output else "queued"}
    assert list(after.watchers) == [kept.id]
    assert await queue.emit(0, WORKER, after.fence_token, make_step([output(kept, 1)])) == {}


async def test_a_lost_workers_output_is_in_the_log_of_its_failed_job(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    for seq, text in enumerate("abc", 1):
        await emit_token(queue, job, seq, text)
    await emit(queue, [], log_flushes=[log_flush(output(job, 1, "a"), 1)])
    assert await reap(queue, store, job) == {job.id: "failed"}
    store.delete(keys.steps(0, WORKER))
    assert [(e.seq, e.items, e.end) for e in await queue.entries(job.id, 0)] == [
        (1, (b"a",), ""),
        (2, (b"b",), ""),
        (3, (b"c",), ""),
        (4, (), "failed"),
    ]


async def test_a_renewed_lease_is_never_taken(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await claim(queue)
    for job in jobs:
        expire_lease(store, job)
    assert await renew(queue, WORKER, jobs[:2]) == {}
    assert await queue.reap(0, LEASE_S) == {jobs[2].id: "queued"}


async def test_the_holder_sets_the_length_of_its_lease(queue: JobQueue, store: Redis) -> None:
    await submit(queue)
    long = await claim_one(queue, lease_s=2 * LONG_AGO_MS / 1000)
    expire_lease(store, long)
    assert await queue.reap(0, LEASE_S) == {}
    await submit(queue)
    short = await claim_one(queue, lease_s=0.001)
    expire_lease(store, short)
    assert await queue.reap(0, LEASE_S) == {short.id: "queued"}


async def test_the_gateway_sets_the_number_of_attempts(queue: JobQueue) -> None:
    job = await lease(queue, max_attempts=1)
    assert await queue.release([job], "engine_died", blame=True) == {job.id: "failed"}


async def test_a_fresh_lease_is_not_taken(queue: JobQueue) -> None:
    await lease(queue)
    assert await queue.reap(0, LEASE_S) == {}


@pytest.mark.parametrize(
    ("stream", "watched", "has_output", "state"),
    [
        pytest.param(True, False, False, "queued", id="nothing was sent"),
        pytest.param(True, False, True, "failed", id="a client has seen a part"),
        pytest.param(False, False, True, "queued", id="nobody sees it grow"),
        pytest.param(False, True, True, "failed", id="somebody watches it grow"),
        pytest.param(False, True, False, "queued", id="a watcher has seen nothing yet"),
    ],
)
@pytest.mark.parametrize("blame", [True, False])
async def test_a_job_starts_again_only_if_no_client_has_received_output(
    queue: JobQueue,
    gateway: ChannelSubscriber,
    stream: bool,
    watched: bool,
    has_output: bool,
    state: str,
    blame: bool,
) -> None:
    job = await lease(queue, stream=stream)
    if watched:
        await queue.watch(job.id, GATEWAY, follow=True)
    if has_output:
        await emit_token(queue, job, 1)
    gateway.frames()
    assert await queue.release([job], "why", blame=blame) == {job.id: state}
    after = await seen(queue, job.id)
    assert after.state == state
    assert after.error_code == ("worker_lost" if state == "failed" else "")
    if state == "failed":
        assert gateway.frames() == [(job.id.encode(), 2, FrameKind.ENDED, b"", b"")]
        entries = await queue.entries(job.id, 0)
        assert [(e.lost, e.end) for e in entries] == [(False, ""), (False, "failed")]


async def test_a_failed_job_leaves_nothing_behind(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue, deadline_s=60)
    await emit_token(queue, job, 1)
    assert await reap(queue, store, job) == {job.id: "failed"}
    assert entries_of(store, job.id) == []
    assert store.keys("*deadlines") == []
    assert store.pttl(keys.job(0, job.id)) > 0
    assert store.pttl(keys.log(0, job.id)) > 0
    assert store.xlen(keys.dead_letters(0)) == 0


async def test_a_job_that_kills_every_worker_fails(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    for attempt in range(1, MAX_ATTEMPTS):
        assert job.attempt == attempt
        assert await reap(queue, store, job) == {job.id: "queued"}
        job = await claim_one(queue, worker=f"w-{attempt}")
    assert await reap(queue, store, job) == {job.id: "failed"}
    after = await seen(queue, job.id)
    assert after.error_code == "too_many_attempts"
    assert [a.outcome for a in after.attempts] == ["worker_lost"] * MAX_ATTEMPTS
    assert [a.worker for a in after.attempts] == [WORKER, "w-1", "w-2"]
    ((_, letter),) = store.xrange(keys.dead_letters(0))
    assert letter == {
        b"what": b"attempts",
        b"id": job.id.encode(),
        b"value:attempts": str(MAX_ATTEMPTS).encode(),
        b"reason": b"worker_lost",
    }
    assert [frame[2] for frame in gateway.frames()] == [FrameKind.ENDED]
    assert await claim(queue) == []


async def test_being_drained_is_not_the_jobs_fault(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    for _ in range(3 * MAX_ATTEMPTS):
        assert job.attempt == 1
        assert await queue.release([job], "drained", blame=False) == {job.id: "queued"}
        job = await claim_one(queue)
    assert store.xlen(keys.dead_letters(0)) == 0
    outcomes = [a.outcome for a in (await seen(queue, job.id)).attempts]
    assert outcomes == ["drained"] * 3 * MAX_ATTEMPTS + ["in_progress"]


async def test_a_dead_engine_counts(queue: JobQueue) -> None:
    job = await lease(queue)
    for _ in range(MAX_ATTEMPTS - 1):
        await queue.release([job], "engine_died", blame=True)
        job = await claim_one(queue)
    assert await queue.release([job], "engine_died", blame=True) == {job.id: "failed"}


async def test_history_has_the_times_of_each_attempt_in_order(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    await reap(queue, store, job)
    await queue.release([await claim_one(queue, worker="w-2")], "drained", blame=False)
    job = await claim_one(queue, worker="w-3")
    after = await seen(queue, job.id)
    assert [(a.worker, a.outcome) for a in after.attempts] == [
        (WORKER, "worker_lost"),
        ("w-2", "drained"),
        ("w-3", "in_progress"),
    ]
    times: list[Any] = [t for a in after.attempts for t in (a.started_at, a.ended_at)]
    assert times.pop() is None
    assert times == sorted(times)
    assert after.created_at <= times[0]


async def test_a_lost_job_is_not_released(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    mine, cancelled, reaped = await claim(queue)
    await queue.cancel(cancelled.id, TENANT)
    await reap(queue, store, reaped)
    assert await queue.release([mine, cancelled, reaped], "drained", blame=True) == {
        mine.id: "queued"
    }
    assert await queue.release([mine], "drained", blame=True) == {}
    assert entries_of(store, mine.id) == [RETRY_LANE]


async def test_the_reaper_clears_what_the_end_of_a_job_left_in_the_list(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    expire_lease(store, job)
    store.delete(keys.job(0, job.id))
    assert await queue.reap(0, LEASE_S) == {}
    assert pending(store) == store.xlen(keys.queue(0, POOL, DEFAULT)) == 0


async def test_a_pending_entry_that_was_deleted_is_acknowledged(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    expire_lease(store, job)
    stream = keys.queue(0, POOL, DEFAULT)
    store.xdel(stream, store.hget(keys.job(0, job.id), "entry"))
    await queue.reap(0, LEASE_S)
    assert pending(store) == 0


async def test_one_round_takes_no_more_than_its_limit_oldest_first(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(5):
        await submit(queue)
    jobs = await claim(queue)
    for job in jobs:
        expire_lease(store, job)
    assert list(await queue.reap(0, LEASE_S, limit=2)) == [job.id for job in jobs[:2]]
    assert list(await queue.reap(0, LEASE_S, limit=9)) == [job.id for job in jobs[2:]]


async def test_every_lane_of_every_pool_is_reaped(queue: JobQueue, store: Redis) -> None:
    for lane in ("priority", "default", "flex"):
        await submit(queue, lane=lane)
    jobs = await claim(queue)
    again = await reap(queue, store, *jobs)
    assert set(again) == {job.id for job in jobs}
    retried = await claim(queue)
    assert set(await reap(queue, store, *retried)) == {job.id for job in jobs}


async def test_a_watched_job_stays_watched_when_another_worker_starts_it(
    queue: JobQueue, store: Redis, other_gateway: ChannelSubscriber
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, "gw-2", follow=True)
    await reap(queue, store, job)
    again = await claim_one(queue, worker="w-2")
    await emit_token(queue, again, 1)
    assert [(f[1], f[2]) for f in other_gateway.frames()] == [
        (0, FrameKind.STARTED),
        (1, FrameKind.DELTAS),
    ]


async def test_the_log_of_a_job_that_is_deleted_goes_with_the_next_renewal(
    queue: JobQueue, store: Redis
) -> None:
    """The log has no time to live, and no client could read it."""
    for _ in range(2):
        await submit(queue)
    gone, damaged = await claim(queue)
    for job in (gone, damaged):
        await emit_and_flush(queue, job)
    store.delete(keys.job(0, gone.id))
    store.hset(keys.job(0, damaged.id), "request", "damaged")
    assert await renew(queue, WORKER, [gone, damaged]) == {gone.id: "gone", damaged.id: "failed"}
    assert not store.exists(keys.log(0, gone.id))
    assert store.exists(keys.log(0, damaged.id))


async def test_an_entry_of_a_deleted_job_leaves_no_log(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    store.delete(keys.job(0, job.id))
    first = output(job, 1)
    fence_token = (await queue.renew(0, WORKER, "", LEASE_S, [])).fence_token
    step = make_step([first], [log_flush(first, 1)])
    assert await queue.emit(0, WORKER, fence_token, step) == {}
    assert not store.exists(keys.log(0, job.id))


async def test_the_end_of_a_deleted_job_leaves_no_log(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await emit_and_flush(queue, job)
    fence_token = (await queue.renew(0, WORKER, "", LEASE_S, [job])).fence_token
    store.delete(keys.job(0, job.id))
    step = make_step([output(job, 2, answer=answer())])
    assert await queue.emit(0, WORKER, fence_token, step) == {job.id: "gone"}
    assert not store.exists(keys.log(0, job.id))
