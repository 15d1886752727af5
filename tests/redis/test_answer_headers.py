"""Answers that are not JSON: their headers are stored with the job."""

from __future__ import annotations

from redis import Redis

from shared.job.frames import FrameKind
from shared.job.states import JobEvent, JobState
from shared.store.redis import keys
from shared.store.queue import Queue
from tests.store.conftest import (
    ChannelSubscriber,
    answer,
    finish,
    lease,
)

BYTES = {
    "content_type": "application/octet-stream",
    "body": b"\x00\xff",
    "headers": (("metadata", '{"data": []}'),),
}


async def test_an_answer_with_headers_is_read_from_the_record(
    queue: Queue, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue, stream=False)
    await finish(queue, leased, 1, answer(**BYTES))
    ((_, _, kind, _, _),) = gateway.frames()
    assert kind == FrameKind.ENDED
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.result, job.headers) == (
        JobState.COMPLETED,
        BYTES["body"],
        {"metadata": '{"data": []}'},
    )


async def test_an_answer_of_bytes_without_headers_travels_in_the_frame(
    queue: Queue, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue, stream=False)
    await finish(queue, leased, 1, answer(**(BYTES | {"headers": ()})))
    ((_, _, kind, _, payload),) = gateway.frames()
    assert kind == FrameKind.RESULT
    assert payload == (200, b"application/octet-stream", b"\x00\xff")


async def test_a_job_with_damaged_headers_is_shown_as_failed(queue: Queue, store: Redis) -> None:
    leased = await lease(queue, stream=False)
    await finish(queue, leased, 1, answer(event=JobEvent.COMPLETE, **BYTES))
    store.hset(keys.job(0, leased.id), "headers", b"\xff")
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.error_code) == (JobState.FAILED, "record_damaged")
