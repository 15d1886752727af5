"""Finish: one terminal state, one last entry; a repeated call does nothing."""

from __future__ import annotations

import pytest

from shared.job.frames import FrameKind, entry_of
from shared.job.job_log import pack_segment
from shared.job.result import INLINE_RESULT_BYTES
from shared.job.states import JobEvent, JobState
from shared.job.step_log import FinalEntry, JobStream
from shared.store.interface import Store
from tests.redis.conftest import (
    TENANT,
    ChannelSubscriber,
    answer,
    emit,
    emit_token,
    finish,
    lease,
    log_entries,
    output,
)

JSON = {"content_type": "application/json"}


async def test_a_finished_job_has_the_workers_result(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue)
    await emit_token(queue, leased, 1, "He")
    frames = [output(leased, seq, text)[1] for seq, text in ((1, "He"), (2, "y"))]
    entries = [entry_of(frame, leased.id, seq) for seq, frame in enumerate(frames, 1)]
    end = FinalEntry(3, pack_segment(1, entries), answer())
    assert await emit(queue, [(JobStream(leased), frames[1], end)]) == {}
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.status, job.error_code) == (JobState.COMPLETED, 200, "")
    assert job.usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert [a.outcome for a in job.attempts] == ["completed"]
    assert [(e.seq, e.items, e.end) for e in await log_entries(queue, leased.id, 0)] == [
        (1, (b"He",), ""),
        (2, (b"y",), ""),
        (3, (), "completed"),
    ]
    assert [(f[1], f[2], f[4]) for f in gateway.frames()] == [
        (1, FrameKind.CHUNK, (b"He",)),
        (2, FrameKind.CHUNK, (b"y",)),
        (3, FrameKind.DONE, b""),
    ]


async def test_a_second_result_does_not_replace_the_first(queue: Store) -> None:
    leased = await lease(queue)
    await finish(queue, leased, 1, answer())
    other = answer(event=JobEvent.FAIL, error_code="engine_error", status=500)
    assert await finish(queue, leased, 1, other) == "completed"
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.state, job.status) == (JobState.COMPLETED, 200)


@pytest.mark.parametrize("lease_id", ["", "f" * 16, "f" * 15])
async def test_a_wrong_lease_id_ends_nothing(
    queue: Store, gateway: ChannelSubscriber, lease_id: str
) -> None:
    leased = await lease(queue)
    assert await finish(queue, leased._replace(lease_id=lease_id), 1, answer()) == "in_progress"
    assert await log_entries(queue, leased.id, 0) == []
    assert gateway.frames() == []
    assert await finish(queue, leased, 1, answer()) == "ok"


async def test_an_empty_lease_id_is_not_the_one_of_a_queued_job(queue: Store) -> None:
    leased = await lease(queue)
    await queue.release([leased], "drained", blame=False)
    assert await finish(queue, leased._replace(lease_id=""), 1, answer()) == "queued"


async def test_a_cancelled_job_stays_cancelled(queue: Store) -> None:
    leased = await lease(queue)
    await queue.cancel(leased.id, TENANT)
    assert await finish(queue, leased, 1, answer()) == "cancelled"


@pytest.mark.parametrize("size", [0, 1, INLINE_RESULT_BYTES])
async def test_a_short_answer_travels_in_the_frame(
    queue: Store, gateway: ChannelSubscriber, size: int
) -> None:
    leased = await lease(queue, stream=False)
    body = b"\xff" * size
    await finish(queue, leased, 1, answer(body=body, status=200, **JSON))
    ((_, seq, kind, _, payload),) = gateway.frames()
    assert (seq, kind) == (1, FrameKind.RESULT)
    assert payload == (200, b"application/json", body)


async def test_a_long_answer_does_not_travel_in_the_frame(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue, stream=False)
    body = b"\xff" * (INLINE_RESULT_BYTES + 1)
    await finish(queue, leased, 1, answer(body=body, **JSON))
    assert gateway.frames() == [(leased.id.encode(), 1, FrameKind.ENDED, 3, b"")]
    job = await queue.get(leased.id)
    assert job is not None
    assert (job.result, job.result_bytes) == (b"", len(body))
    assert job.content_type == "application/json"


async def test_a_refused_stream_ends_with_the_engines_own_body(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue, stream=True)
    refusal = answer(event=JobEvent.FAIL, error_code="rejected", status=400, body=b"{}", **JSON)
    await finish(queue, leased, 1, refusal)
    ((_, _, kind, _, payload),) = gateway.frames()
    assert kind == FrameKind.RESULT
    assert payload == (400, b"application/json", b"{}")


async def test_every_watching_gateway_receives_the_end(
    queue: Store, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue)
    await queue.watch(leased.id, "gw-2", follow=False)
    await finish(queue, leased, 1, answer())
    assert gateway.frames() == other_gateway.frames() != []
