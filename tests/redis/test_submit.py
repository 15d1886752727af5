"""Submit: a job is stored completely or not at all."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.errors import QueueFull
from shared.job.job import new_job_id
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import POOL, TENANT, claim, entries_of, make_job, submit, submit_one


async def test_a_submitted_job_has_the_fields_that_were_submitted(queue: JobQueue) -> None:
    handed_in = make_job(metadata={"a": "b"}, deadline_s=30.0, stream=False)
    await submit_one(queue, handed_in, 10)
    job = await queue.get(handed_in.id)
    assert job is not None
    assert job.state is JobState.QUEUED
    for name in ("id", "tenant", "pool", "lane", "model", "endpoint", "stream", "ttl_s"):
        assert getattr(job, name) == getattr(handed_in, name), name
    assert job.metadata == {"a": "b"}
    assert job.deadline_at == pytest.approx(job.created_at + 30.0, abs=1e-3)
    assert (job.attempts, job.started_at, job.finished_at, job.error_code) == ((), None, None, "")


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
    refused = make_job(tenant="somebody else", deadline_s=5)
    with pytest.raises(QueueFull, match="2 jobs wait"):
        await submit_one(queue, refused, 2)
    assert set(store.keys()) == there
    assert await queue.get(refused.id) is None


async def test_a_full_lane_does_not_close_another(queue: JobQueue) -> None:
    await submit_one(queue, make_job(lane=FLEX), 1)
    assert await submit_one(queue, make_job(lane=PRIORITY), 1) == 1
    assert await submit_one(queue, make_job(lane=FLEX, pool="other"), 1) == 1


async def test_a_cancelled_job_makes_room(queue: JobQueue) -> None:
    first = make_job()
    await submit_one(queue, first, 1)
    await queue.cancel(first.id, TENANT)
    assert await submit_one(queue, make_job(), 1) == 1


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


async def test_any_bytes_travel_unchanged(queue: JobQueue) -> None:
    body = bytes(range(256)) * 300
    job = await submit(queue, body=body, endpoint="/v1/ü", model="Ω\n")
    (leased,) = await claim(queue, 1)
    assert (leased.id, leased.body, leased.endpoint) == (job.id, body, "/v1/ü")


async def test_an_unknown_job_is_none(queue: JobQueue) -> None:
    assert await queue.get(new_job_id(1)) is None
    assert await queue.get("job_nonsense") is None
