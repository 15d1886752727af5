"""Jobs that lose their worker: what is left in Redis; see tests/store for what callers see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import Job, LeasedJob
from shared.job.job_log import Delta, read_journal
from shared.job.lanes import DEFAULT, FLEX, RETRY_LANE
from shared.job.record import read_lease
from shared.job.replies import Fenced
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from shared.store.views import places
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
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
    log_entries,
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


def from_seq(store: Redis, job_id: str) -> int:
    """The number of the log's last entry when the job was last leased."""
    packed: Any = store.hget(keys.job(0, job_id), "lease")
    return read_lease(packed).from_seq


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
    found = await places(queue, [again, await seen(queue, later.id)])
    assert [place and place.position for place in found] == [1, 2]
    assert entries_of(store, job.id) == [RETRY_LANE]
    assert pending(store) == 0
    assert [each.id for each in await claim(queue)] == [job.id, later.id]


async def test_a_requeued_job_has_no_holder_keeps_its_log_and_adds_a_wake_up(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, stream=False)
    await emit(queue, [output(job, 1)], log_flushes=[log_flush(output(job, 1), 1)])
    await emit_token(queue, job, 2)
    before = await log_entries(queue, job.id, 0)
    store.delete(keys.wake_ups(0, POOL))
    await reap(queue, store, job)
    packed: Any = store.hget(keys.job(0, job.id), "lease")
    assert read_lease(packed)[:4] == ("", "", 1, 0)
    store.delete(keys.steps(0, WORKER))
    assert await log_entries(queue, job.id, 0) == before
    assert store.llen(keys.wake_ups(0, POOL)) == 1
    assert store.ttl(keys.job(0, job.id)) == store.ttl(keys.log(0, job.id)) == -1


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


@pytest.mark.parametrize("worker", [WORKER, "w-2"])
async def test_the_next_lease_continues_the_log(queue: JobQueue, store: Redis, worker: str) -> None:
    """Also on the same worker, whose step log still has the entries of the lease before."""
    job = await lease(queue, stream=False)
    await emit_token(queue, job, 1, "old")
    await emit_token(queue, job, 2, "old")
    await queue.release([job], "drained", blame=False)
    again = await claim_one(queue, worker=worker)
    assert (again.generation, from_seq(store, job.id)) == (2, 2)
    await emit_token(queue, again, 3, "new")
    part = await queue.read_log(job.id, 0)
    assert part.generation == 2
    texts = [read_journal(entry.journal)[0] for entry in part.entries]
    assert texts == [Delta(0, 0, (1,), "old"), Delta(0, 0, (2,), "old"), Delta(0, 0, (3,), "new")]
    await queue.cancel(job.id, TENANT)
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.end) for e in entries] == [(1, ""), (2, ""), (3, ""), (4, "cancelled")]


async def test_a_job_that_was_taken_back_can_be_cancelled_and_keeps_its_output(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    await reap(queue, store, job)
    gateway.frames()
    assert await queue.cancel(job.id, TENANT) == "cancelled"
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.end) for e in entries] == [(1, ""), (2, "cancelled")]
    assert gateway.frames() == [(job.id.encode(), 2, FrameKind.ENDED, b"", b"")]
    assert await claim(queue) == []
    assert store.pttl(keys.log(0, job.id)) > 0


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
    assert after.lost == {lost.id: "queued"}
    assert list(after.watchers) == [kept.id]
    assert await queue.emit(0, WORKER, after.fence_token, make_step([output(kept, 1)])) == {}


SEEN = [
    pytest.param(True, False, True, id="its answer is streamed"),
    pytest.param(False, True, True, id="somebody watches it grow"),
    pytest.param(False, False, False, id="nobody sees it grow"),
]
"""stream, watched, whether a client may have seen the output."""


async def lose_an_entry(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    """Entry 2, between others."""
    await emit_and_flush(queue, job)
    await emit_token(queue, job, 2)
    store.delete(keys.steps(0, WORKER))
    await emit_token(queue, job, 3)


async def lose_what_it_continues(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    """The log is deleted under a lease that continues it and has written nothing yet."""
    await emit_and_flush(queue, job)
    await queue.release([job], "drained", blame=False)
    await claim(queue)
    store.delete(keys.log(0, job.id))


@pytest.mark.parametrize(("stream", "watched", "is_seen"), SEEN)
@pytest.mark.parametrize("lose", [lose_an_entry, lose_what_it_continues])
async def test_a_log_that_lacks_entries_fails_a_job_that_was_seen_and_restarts_another(
    queue: JobQueue,
    store: Redis,
    gateway: ChannelSubscriber,
    lose: Callable[[JobQueue, Redis, LeasedJob], Awaitable[None]],
    stream: bool,
    watched: bool,
    is_seen: bool,
) -> None:
    job = await lease(queue, stream=stream)
    if watched:
        await queue.watch(job.id, GATEWAY, follow=True)
    await lose(queue, store, job)
    gateway.frames()
    state = "failed" if is_seen else "queued"
    assert await reap(queue, store, job) == {job.id: state}
    after = await seen(queue, job.id)
    if is_seen:
        assert after.error_code == "log_lost"
        assert [frame[2] for frame in gateway.frames()] == [FrameKind.ENDED]
        return
    assert not store.exists(keys.log(0, job.id))
    assert store.hget(keys.job(0, job.id), "log_lost") is None
    again = await claim_one(queue, worker="w-2")
    assert from_seq(store, job.id) == 0
    last = output(again, 1, answer=answer())
    assert await emit(queue, [last], worker="w-2") == {}
    assert (await seen(queue, job.id)).state is JobState.COMPLETED


async def test_a_failed_job_leaves_nothing_behind(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue, deadline_s=60, max_attempts=1)
    assert await reap(queue, store, job) == {job.id: "failed"}
    assert entries_of(store, job.id) == []
    assert store.keys("*deadlines") == []
    assert store.pttl(keys.job(0, job.id)) > 0
    assert store.pttl(keys.log(0, job.id)) > 0


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
    assert [frame[2] for frame in gateway.frames()] == [FrameKind.ENDED]
    assert await claim(queue) == []


async def test_progress_resets_the_count_of_attempts(queue: JobQueue, store: Redis) -> None:
    """An attempt counts against the job only if it has added no entry."""
    job = await lease(queue)
    for seq in (1, 2, 3):
        for _ in range(MAX_ATTEMPTS - 1):
            assert await reap(queue, store, job) == {job.id: "queued"}
            job = await claim_one(queue)
        assert job.attempt == MAX_ATTEMPTS
        await emit_token(queue, job, seq)
        assert await reap(queue, store, job) == {job.id: "queued"}
        job = await claim_one(queue)
        assert (job.attempt, from_seq(store, job.id)) == (1, seq)
    for _ in range(MAX_ATTEMPTS - 1):
        assert await reap(queue, store, job) == {job.id: "queued"}
        job = await claim_one(queue)
    assert await reap(queue, store, job) == {job.id: "failed"}
    after = await seen(queue, job.id)
    assert after.error_code == "too_many_attempts"
    assert [attempt.entries for attempt in after.attempts] == [0, 0, 1] * 3 + [0] * MAX_ATTEMPTS
    assert [e.end for e in await log_entries(queue, job.id, 0)] == [""] * 3 + ["failed"]


# --- a log that an engine can't continue ---


async def continued(queue: JobQueue, store: Redis, n_entries: int = 2, **changes: Any) -> LeasedJob:
    """A lease of a job in whose log an earlier lease has left entries."""
    job = await lease(queue, **changes)
    for seq in range(1, n_entries + 1):
        await emit_token(queue, job, seq)
    await reap(queue, store, job)
    return await claim_one(queue, worker="w-2")


async def test_a_job_that_nobody_has_seen_restarts(queue: JobQueue, store: Redis) -> None:
    job = await continued(queue, store, stream=False)
    fence_token = (await queue.renew(0, "w-2", "", LEASE_S, [job])).fence_token
    assert await queue.restart(job, "no continuation") == "queued"
    assert not store.exists(keys.log(0, job.id))
    assert entries_of(store, job.id) == [RETRY_LANE]
    with pytest.raises(Fenced):
        await queue.emit(0, "w-2", fence_token, make_step([output(job, 3)]))
    assert await queue.restart(job, "again") == ""
    again = await claim_one(queue, worker="w-3")
    assert (again.attempt, from_seq(store, job.id)) == (1, 0)
    assert await emit(queue, [output(again, 1, answer=answer())], worker="w-3") == {}
    after = await seen(queue, job.id)
    outcomes = ["worker_lost", "no continuation", "completed"]
    assert [attempt.outcome for attempt in after.attempts] == outcomes


async def test_being_drained_is_not_the_jobs_fault(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    for _ in range(3 * MAX_ATTEMPTS):
        assert job.attempt == 1
        assert await queue.release([job], "drained", blame=False) == {job.id: "queued"}
        job = await claim_one(queue)
    outcomes = [a.outcome for a in (await seen(queue, job.id)).attempts]
    assert outcomes == ["drained"] * 3 * MAX_ATTEMPTS + ["in_progress"]


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


async def test_the_log_of_a_job_that_is_deleted_has_a_time_to_live_from_the_next_renewal_on(
    queue: JobQueue, store: Redis
) -> None:
    """Usage counts its tokens meanwhile; no client can read it."""
    for _ in range(2):
        await submit(queue)
    gone, damaged = await claim(queue)
    for job in (gone, damaged):
        await emit_and_flush(queue, job)
    store.delete(keys.job(0, gone.id))
    store.hset(keys.job(0, damaged.id), "request", "damaged")
    assert await renew(queue, WORKER, [gone, damaged]) == {gone.id: "gone", damaged.id: "failed"}
    assert store.pttl(keys.log(0, gone.id)) > 0
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
    assert 0 < store.pttl(keys.log(0, job.id)) <= 60_000
