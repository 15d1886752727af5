"""Submit: a job is stored completely or not at all. What callers see is in tests/store."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.errors import QueueFull
from shared.job.lanes import DEFAULT
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import (
    POOL,
    TENANT,
    entries_of,
    make_job,
    submit,
    submit_one,
)


async def test_a_queued_job_has_one_entry_and_no_time_to_live(
    queue: JobQueue, store: Redis
) -> None:
    job = await submit(queue)
    assert entries_of(store, job.id) == [DEFAULT]
    assert store.ttl(keys.job(0, job.id)) == -1
    assert store.zscore(keys.jobs(0, TENANT), job.id) is not None
    assert store.llen(keys.wake_ups(0, POOL)) == 1


async def test_submitted_twice_it_is_one_job(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue)
    before = store.hgetall(keys.job(0, job.id))
    assert await submit_one(queue, job, 10) == 1
    assert store.hgetall(keys.job(0, job.id)) == before
    assert entries_of(store, job.id) == [DEFAULT]


async def test_a_full_lane_refuses_a_job_and_stores_nothing(queue: JobQueue, store: Redis) -> None:
    for _ in range(2):
        await submit_one(queue, make_job(), 2)
    there = set(store.keys())
    refused = make_job(tenant="another-tenant", deadline_s=5)
    with pytest.raises(QueueFull, match="2 jobs wait"):
        await submit_one(queue, refused, 2)
    assert set(store.keys()) == there
    assert await queue.get(refused.id) is None


async def test_a_job_without_a_deadline_is_in_no_list_of_deadlines(
    queue: JobQueue, store: Redis
) -> None:
    await submit(queue)
    later = await submit(queue, deadline_s=60)
    (deadlines,) = store.keys("*deadlines")
    assert store.zrange(deadlines, 0, -1) == [later.id.encode()]


async def test_each_job_adds_a_wake_up_up_to_a_limit(queue: JobQueue, store: Redis) -> None:
    for _ in range(70):
        await submit(queue)
    assert store.llen(keys.wake_ups(0, POOL)) == 64
