"""Jobs that lose their worker: they are requeued in front, or they fail; never on two workers."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job_log import tokens_in
from shared.job.states import JobState
from shared.store.interface import Store
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    LONG_AGO_MS,
    MAX_ATTEMPTS,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit,
    emit_token,
    expire_lease,
    lease,
    log_entries,
    output,
    renew,
    submit,
)
from tests.redis.test_release_and_reap import SEEN, continued, reap, seen


async def test_a_continued_answer_is_completed(queue: Store, server: Redis) -> None:
    """Its log has entries of both leases; so has its count of tokens."""
    job = await lease(queue)
    for seq in (1, 2):
        await emit_token(queue, job, seq)
    assert await reap(queue, server, job) == {job.id: "queued"}
    again = await claim_one(queue, worker="w-2")
    last = output(again, 3, answer=answer(completion_tokens=3))
    assert await emit(queue, [last], worker="w-2") == {}
    after = await seen(queue, job.id)
    assert (after.state, after.error_code) == (JobState.COMPLETED, "")
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.end, e.tokens) for e in entries[2:]] == [
        (3, "", None),
        (4, "completed", 3),
    ]
    assert entries[-1].tokens == sum(tokens_in(entry.journal) for entry in entries)
    assert not any(entry.lost for entry in entries)


async def test_a_lease_that_does_not_continue_the_log_completes_nothing(
    queue: Store, server: Redis
) -> None:
    """Its worker has begun anew, though there is a log."""
    job = await lease(queue)
    for seq in (1, 2):
        await emit_token(queue, job, seq)
    await reap(queue, server, job)
    again = await claim_one(queue, worker="w-2")
    last = output(again, 1, answer=answer())
    assert await emit(queue, [last], worker="w-2") == {job.id: "failed"}
    assert (await seen(queue, job.id)).error_code == "log_lost"


async def test_a_renewed_lease_is_never_taken(queue: Store, server: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await claim(queue)
    for job in jobs:
        expire_lease(server, job)
    assert await renew(queue, WORKER, jobs[:2]) == {}
    assert await queue.reap(0, LEASE_S) == {jobs[2].id: "queued"}


async def test_the_holder_sets_the_length_of_its_lease(queue: Store, server: Redis) -> None:
    await submit(queue)
    long = await claim_one(queue, lease_s=2 * LONG_AGO_MS / 1000)
    expire_lease(server, long)
    assert await queue.reap(0, LEASE_S) == {}
    await submit(queue)
    short = await claim_one(queue, lease_s=0.001)
    expire_lease(server, short)
    assert await queue.reap(0, LEASE_S) == {short.id: "queued"}


async def test_the_gateway_sets_the_number_of_attempts(queue: Store) -> None:
    job = await lease(queue, max_attempts=1)
    assert await queue.release([job], "engine_died", blame=True) == {job.id: "failed"}


async def test_a_fresh_lease_is_not_taken(queue: Store) -> None:
    await lease(queue)
    assert await queue.reap(0, LEASE_S) == {}


@pytest.mark.parametrize(("stream", "watched", "is_seen"), SEEN)
@pytest.mark.parametrize("blame", [True, False])
async def test_a_job_is_continued_whatever_clients_have_seen(
    queue: Store,
    gateway: ChannelSubscriber,
    stream: bool,
    watched: bool,
    is_seen: bool,
    blame: bool,
) -> None:
    job = await lease(queue, stream=stream)
    if watched:
        await queue.watch(job.id, GATEWAY, follow=True)
    await emit_token(queue, job, 1)
    gateway.frames()
    assert await queue.release([job], "why", blame=blame) == {job.id: "queued"}
    assert gateway.frames() == []
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1]


async def test_a_history_keeps_the_latest_attempts(queue: Store) -> None:
    job = await lease(queue)
    for n in range(103):
        await queue.release([job], f"reason {n}", blame=False)
        job = await claim_one(queue)
    outcomes = [attempt.outcome for attempt in (await seen(queue, job.id)).attempts]
    assert outcomes == [*(f"reason {n}" for n in range(3, 103)), "in_progress"]


@pytest.mark.parametrize("watched", [True, False])
async def test_a_job_that_a_client_has_seen_does_not_restart(
    queue: Store, server: Redis, gateway: ChannelSubscriber, watched: bool
) -> None:
    job = await continued(queue, server, stream=not watched)
    if watched:
        await queue.watch(job.id, GATEWAY, follow=True)
    gateway.frames()
    assert await queue.restart(job, "no continuation") == "failed"
    after = await seen(queue, job.id)
    assert (after.state, after.error_code) == (JobState.FAILED, "worker_lost")
    assert [attempt.outcome for attempt in after.attempts] == ["worker_lost", "no continuation"]
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.end) for e in entries] == [(1, ""), (2, ""), (3, "failed")]
    assert gateway.frames() == [(job.id.encode(), 3, FrameKind.ENDED, b"", b"")]


async def test_a_seen_job_fails_with_the_code_that_its_worker_gives(
    queue: Store, server: Redis
) -> None:
    job = await continued(queue, server)
    assert await queue.restart(job, "no continuation", "context_changed") == "failed"
    assert (await seen(queue, job.id)).error_code == "context_changed"


async def test_a_restarted_job_makes_progress_only_beyond_what_it_had(
    queue: Store, server: Redis
) -> None:
    """Else a job that kills each worker after its third token would go on for ever."""
    job = await continued(queue, server, n_entries=3, stream=False)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert await queue.restart(job, "no continuation") == "queued"
        job = await claim_one(queue, worker="w-2")
        assert job.attempt == attempt
        for seq in (1, 2, 3):
            await emit_token(queue, job, seq)
        state = "queued" if attempt < MAX_ATTEMPTS else "failed"
        assert await reap(queue, server, job) == {job.id: state}
        if state == "queued":
            job = await claim_one(queue, worker="w-2")
    assert (await seen(queue, job.id)).error_code == "too_many_attempts"


async def test_a_restart_without_a_log_counts_as_an_attempt(queue: Store) -> None:
    job = await lease(queue)
    for _ in range(MAX_ATTEMPTS - 1):
        assert await queue.restart(job, "no continuation") == "queued"
        job = await claim_one(queue)
    assert await queue.restart(job, "no continuation") == "failed"


async def test_a_dead_engine_counts(queue: Store) -> None:
    job = await lease(queue)
    for _ in range(MAX_ATTEMPTS - 1):
        await queue.release([job], "engine_died", blame=True)
        job = await claim_one(queue)
    assert await queue.release([job], "engine_died", blame=True) == {job.id: "failed"}


async def test_history_has_the_times_of_each_attempt_in_order(queue: Store, server: Redis) -> None:
    job = await lease(queue)
    await reap(queue, server, job)
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


async def test_one_round_takes_no_more_than_its_limit_oldest_first(
    queue: Store, server: Redis
) -> None:
    for _ in range(5):
        await submit(queue)
    jobs = await claim(queue)
    for job in jobs:
        expire_lease(server, job)
    assert list(await queue.reap(0, LEASE_S, limit=2)) == [job.id for job in jobs[:2]]
    assert list(await queue.reap(0, LEASE_S, limit=9)) == [job.id for job in jobs[2:]]


async def test_every_lane_of_every_pool_is_reaped(queue: Store, server: Redis) -> None:
    for lane in ("priority", "default", "flex"):
        await submit(queue, lane=lane)
    jobs = await claim(queue)
    again = await reap(queue, server, *jobs)
    assert set(again) == {job.id for job in jobs}
    retried = await claim(queue)
    assert set(await reap(queue, server, *retried)) == {job.id for job in jobs}


async def test_a_watched_job_stays_watched_when_another_worker_starts_it(
    queue: Store, server: Redis, other_gateway: ChannelSubscriber
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, "gw-2", follow=True)
    await reap(queue, server, job)
    again = await claim_one(queue, worker="w-2")
    await emit_token(queue, again, 1)
    assert [(f[1], f[2]) for f in other_gateway.frames()] == [
        (0, FrameKind.STARTED),
        (1, FrameKind.DELTAS),
    ]
