"""Queue and run deadlines by Redis' clock: which one applies, and what has passed never runs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis as sync_redis

from shared.job.job import Job
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.submit import pack_job
from tests.redis.conftest import (
    POOL,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit_and_flush,
    finish,
    log_entries,
    make_job,
    submit,
)

DEADLINES = keys.base(0) + keys.DEADLINES
MARGIN_S = 30.0
"""Between two times of which one follows from the other: a loaded machine may pause."""


async def seen(queue: JobQueue, job_id: str) -> Job:
    job = await queue.get(job_id)
    assert job is not None
    return job


def set_due(store: sync_redis.Redis, job_id: str) -> None:
    """Move the deadline that applies now into the past."""
    store.hset(keys.job(0, job_id), "deadline_us", 1)
    store.zadd(DEADLINES, {job_id: 1})


@pytest.mark.parametrize(
    ("fields", "queued_s", "running_s"),
    [
        ({"queue_deadline_s": 100.0}, 100, None),
        ({"run_deadline_s": 500.0}, None, 500),
        ({"queue_deadline_s": 100.0, "run_deadline_s": 500.0}, 100, 500),
        ({"deadline_s": 1000.0}, 1000, 1000),
        ({"queue_deadline_s": 100.0, "deadline_s": 1000.0}, 100, 1000),
        ({"queue_deadline_s": 1000.0, "deadline_s": 100.0}, 100, 100),
        ({"run_deadline_s": 500.0, "deadline_s": 1000.0}, 1000, 500),
        ({"run_deadline_s": 5000.0, "deadline_s": 1000.0}, 1000, 1000),
        ({}, None, None),
    ],
)
async def test_the_deadline_that_applies_before_and_after_the_first_start(
    queue: JobQueue,
    store: sync_redis.Redis,
    fields: dict[str, Any],
    queued_s: float | None,
    running_s: float | None,
) -> None:
    job_id = (await submit(queue, **fields)).id

    async def check(expected_s: float | None) -> None:
        job, score = await seen(queue, job_id), store.zscore(DEADLINES, job_id)
        if expected_s is None:
            assert (job.deadline_at, score) == (None, None)
        else:
            assert job.deadline_at is not None
            assert abs(job.deadline_at - job.created_at - expected_s) < MARGIN_S
            assert score == pytest.approx(job.deadline_at * 1e6)

    await check(queued_s)
    leased = await claim_one(queue)
    await check(running_s)
    before = (await seen(queue, job_id)).deadline_at
    await queue.release([leased], "worker_lost", blame=True)
    assert (await seen(queue, job_id)).deadline_at == before
    leased = await claim_one(queue)
    assert (await seen(queue, job_id)).deadline_at == before, "counted from the first start"
    assert await finish(queue, leased, 1, answer()) == "ok"
    assert store.zscore(DEADLINES, job_id) is None


async def test_a_job_that_is_leased_as_it_is_submitted_has_its_run_deadline(
    queue: JobQueue, store: sync_redis.Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 2, slots=2)
    job_ids = [
        (await submit(queue, queue_deadline_s=100.0, run_deadline_s=5000.0)).id,
        (await submit(queue, queue_deadline_s=100.0)).id,
    ]
    assert [job.id for job in control.assigned(queue)] == job_ids
    both, only_queued = [await seen(queue, job_id) for job_id in job_ids]
    assert both.deadline_at is not None
    assert abs(both.deadline_at - time.time() - 5000) < MARGIN_S
    assert only_queued.deadline_at is None
    assert [job_id.decode() for job_id in store.zrange(DEADLINES, 0, -1)] == [both.id]


@pytest.mark.parametrize("by", ["claim", "reaper"])
async def test_a_lost_job_past_its_run_deadline_is_not_continued(
    queue: JobQueue, store: sync_redis.Redis, by: str
) -> None:
    job_id = (await submit(queue, queue_deadline_s=100.0, run_deadline_s=50.0)).id
    leased = await claim_one(queue)
    await emit_and_flush(queue, leased)
    await queue.release([leased], "worker_lost", blame=True)
    set_due(store, job_id)
    if by == "claim":
        assert await claim(queue) == []
    else:
        assert await queue.expire(0) == (1, {job_id: "expired"})
    job = await seen(queue, job_id)
    assert (job.state, job.error_code) == (JobState.EXPIRED, "run_deadline_exceeded")
    assert [entry.end for entry in await log_entries(queue, job_id, 0)] == ["", "expired"]


async def test_the_deadline_for_the_whole_job_has_its_own_error(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    waits = (await submit(queue, deadline_s=0.001)).id
    runs = (await submit(queue, deadline_s=0.001, run_deadline_s=500.0)).id
    # Submitted long ago, and claimed before the deadline.
    store.hset(keys.job(0, runs), mapping={"created_us": 1, "deadline_us": 10**17})
    leased = [job.id for job in await claim(queue)]
    assert runs in leased
    set_due(store, runs)
    set_due(store, waits)
    await queue.expire(0)
    assert (await seen(queue, waits)).error_code == "deadline_exceeded"
    assert (await seen(queue, runs)).error_code == "deadline_exceeded"


def test_the_first_deadline_of_a_job_is_sent_with_it() -> None:
    job = make_job()
    with_deadlines = job._replace(queue_deadline_s=1.5, run_deadline_s=2.0, deadline_s=3.0)
    assert pack_job(job)[3] == 0
    assert pack_job(with_deadlines)[3] == 1_500_000
    assert job.pool == POOL
