"""Finish: one terminal state, one last entry, nothing left in the queue; twice told, once done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from shared import keys
from shared.channel import FrameKind
from shared.lanes import DEFAULT
from shared.queue import INLINE_RESULT_BYTES, JobQueue
from shared.states import JobEvent, JobState
from tests.redis.conftest import (
    POOL,
    TENANT,
    Listener,
    answer,
    entries_of,
    finish,
    grow_old,
    lease,
    make_job,
    pending,
    say,
    submit,
    take,
    take_one,
)
from tests.waiting import eventually

JSON = {"content_type": "application/json"}


async def test_a_finished_job_is_what_its_worker_said(queue: JobQueue, gateway: Listener) -> None:
    leased = await lease(queue)
    await say(queue, leased, 1)
    assert await finish(queue, leased, 2, answer()) == "ok"
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.status, job.error_code) == (JobState.COMPLETED, 200, "")
    assert job.usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert [a.outcome for a in job.attempts] == ["completed"]
    assert [(e.seq, e.end) for e in await queue.entries(leased.id, 0)] == [
        (1, ""),
        (2, "completed"),
    ]
    assert gateway.frames()[-1] == (leased.id.encode(), 2, FrameKind.DONE, b"")


@pytest.mark.parametrize("event", [JobEvent.COMPLETE, JobEvent.FAIL])
async def test_nothing_is_left_of_it_but_its_hash_and_its_log(
    queue: JobQueue, store: Redis, event: JobEvent
) -> None:
    leased = await lease(queue, deadline_s=600, ttl_s=60)
    await finish(queue, leased, 1, answer(event=event, error_code="x" * (event is JobEvent.FAIL)))
    assert entries_of(store, leased.id) == []
    assert pending(store) == 0
    kept = {keys.job(0, leased.id), keys.log(0, leased.id)}
    assert {key.decode() for key in store.keys(f"*{leased.id}")} == kept
    assert store.keys("*deadlines") == store.keys("*waiting*") == []
    for key in kept:
        assert 59_000 < store.pttl(key) <= 60_000


async def test_hash_and_log_end_at_the_same_moment(queue: JobQueue, store: Redis) -> None:
    leased = await lease(queue)
    await finish(queue, leased, 1, answer())
    pipe = store.pipeline()
    pipe.pttl(keys.job(0, leased.id)).pttl(keys.log(0, leased.id))
    first, second = pipe.execute()
    assert first == pytest.approx(second, abs=500)


async def test_told_twice_it_is_done_once(queue: JobQueue, store: Redis, gateway: Listener) -> None:
    leased = await lease(queue)
    assert await finish(queue, leased, 1, answer()) == "ok"
    before = store.hgetall(keys.job(0, leased.id))
    gateway.frames()
    assert await finish(queue, leased, 1, answer()) == "ok"
    assert store.hgetall(keys.job(0, leased.id)) == before
    assert len(await queue.entries(leased.id, 0)) == 1
    assert gateway.frames() == []


async def test_the_second_word_does_not_change_the_first(queue: JobQueue) -> None:
    leased = await lease(queue)
    await finish(queue, leased, 1, answer())
    other = answer(event=JobEvent.FAIL, error_code="engine_error", status=500)
    assert await finish(queue, leased, 1, other) == "completed"
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.status) == (JobState.COMPLETED, 200)


@pytest.mark.parametrize("nonce", ["", "f" * 16, "f" * 15])
async def test_a_wrong_nonce_ends_nothing(
    queue: JobQueue, store: Redis, gateway: Listener, nonce: str
) -> None:
    leased = await lease(queue)
    assert await finish(queue, replace(leased, nonce=nonce), 1, answer()) == "in_progress"
    assert await queue.entries(leased.id, 0) == []
    assert gateway.frames() == []
    assert await finish(queue, leased, 1, answer()) == "ok"


async def test_an_empty_nonce_is_not_the_one_of_a_queued_job(queue: JobQueue) -> None:
    leased = await lease(queue)
    await queue.release([leased], "drained", blame=False)
    assert await finish(queue, replace(leased, nonce=""), 1, answer()) == "queued"


async def test_who_has_lost_the_job_hears_what_it_is_now(queue: JobQueue, store: Redis) -> None:
    old = await lease(queue)
    grow_old(store, old)
    await queue.reap(0, 1.0)
    assert await finish(queue, old, 1, answer()) == "queued"
    new = await take_one(queue, worker="w-2")
    assert await finish(queue, old, 1, answer()) == "in_progress"
    assert await finish(queue, new, 1, answer()) == "ok"
    assert await finish(queue, old, 1, answer()) == "completed"
    store.delete(keys.job(0, old.id))
    assert await finish(queue, old, 1, answer()) == "gone"


async def test_a_cancelled_job_stays_cancelled(queue: JobQueue) -> None:
    leased = await lease(queue)
    await queue.cancel(leased.id, TENANT)
    assert await finish(queue, leased, 1, answer()) == "cancelled"


@pytest.mark.parametrize("size", [0, 1, INLINE_RESULT_BYTES])
async def test_a_short_answer_travels_in_the_frame(
    queue: JobQueue, gateway: Listener, size: int
) -> None:
    leased = await lease(queue, stream=False)
    body = b"\xff" * size
    await finish(queue, leased, 1, answer(body=body, status=200, **JSON))
    ((_, seq, kind, payload),) = gateway.frames()
    assert (seq, kind) == (1, FrameKind.RESULT)
    assert payload == (200, b"application/json", body)


async def test_a_long_answer_does_not_travel_in_the_frame(
    queue: JobQueue, gateway: Listener
) -> None:
    leased = await lease(queue, stream=False)
    body = b"\xff" * (INLINE_RESULT_BYTES + 1)
    await finish(queue, leased, 1, answer(body=body, **JSON))
    assert gateway.frames() == [(leased.id.encode(), 1, FrameKind.ENDED, b"")]
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.result, job.content_type) == (body, "application/json")


async def test_a_refused_stream_is_told_with_the_engines_own_body(
    queue: JobQueue, gateway: Listener
) -> None:
    leased = await lease(queue, stream=True)
    refusal = answer(event=JobEvent.FAIL, error_code="rejected", status=400, body=b"{}", **JSON)
    await finish(queue, leased, 1, refusal)
    ((_, _, kind, payload),) = gateway.frames()
    assert kind == FrameKind.RESULT
    assert payload == (400, b"application/json", b"{}")


async def test_every_gateway_that_waits_hears_of_the_end(
    queue: JobQueue, gateway: Listener, other_gateway: Listener
) -> None:
    leased = await lease(queue)
    await queue.watch(leased.id, "gw-2", sees=False)
    await finish(queue, leased, 1, answer())
    assert gateway.frames() == other_gateway.frames() != []


async def test_the_end_of_one_job_leaves_the_others_alone(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    first, *others = await take(queue)
    await finish(queue, first, 1, answer())
    assert pending(store) == store.xlen(keys.queue(0, POOL, DEFAULT)) == 2
    for job in others:
        assert await say(queue, job, 1) == {}


async def test_a_job_is_deleted_when_its_time_is_over(queue: JobQueue, store: Redis) -> None:
    job = make_job(ttl_s=0.001)
    await queue.submit(job, 9)
    await finish(queue, await take_one(queue), 1, answer())

    async def gone() -> bool:
        return await queue.get(job.id) is None

    await eventually(gone, "the job is deleted")
    assert not store.exists(keys.log(0, job.id))
