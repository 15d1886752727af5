"""Submit: a job is stored as it was submitted; a full lane refuses it."""

from __future__ import annotations

import pytest

from shared.job.job import new_job_id
from shared.job.lanes import FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.interface import Store
from tests.redis.conftest import TENANT, claim, make_job, submit, submit_one


async def test_a_submitted_job_has_the_fields_that_were_submitted(queue: Store) -> None:
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


async def test_a_full_lane_does_not_close_another(queue: Store) -> None:
    await submit_one(queue, make_job(lane=FLEX), 1)
    assert await submit_one(queue, make_job(lane=PRIORITY), 1) == 1
    assert await submit_one(queue, make_job(lane=FLEX, pool="other"), 1) == 1


async def test_a_cancelled_job_makes_room(queue: Store) -> None:
    first = make_job()
    await submit_one(queue, first, 1)
    await queue.cancel(first.id, TENANT)
    assert await submit_one(queue, make_job(), 1) == 1


async def test_any_bytes_travel_unchanged(queue: Store) -> None:
    body = bytes(range(256)) * 300
    job = await submit(queue, body=body, endpoint="/v1/ü", model="Ω\n")
    (leased,) = await claim(queue, 1)
    assert (leased.id, leased.body, leased.endpoint) == (job.id, body, "/v1/ü")


async def test_an_unknown_job_is_none(queue: Store) -> None:
    assert await queue.get(new_job_id(1)) is None
    assert await queue.get("job_nonsense") is None
