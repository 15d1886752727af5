"""Jobs on a real queue that go from one worker to the next: their logs, records and frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from shared.job.frames import LAST, DeltaDecoder, FrameKind
from shared.job.job import Job, NewJob
from shared.job.job_log import Entry, tokens_in
from shared.job.result import JobResult
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    ChannelSubscriber,
    expire_lease,
    log_entries,
    make_job,
    submit_one,
)
from tests.redis.worker_loops import chat, serving
from worker.core.loop import WorkerLoop
from worker.core.output_buffer import OutputBuffer

N_TOKENS = 100


async def tokens_logged(queue: JobQueue, job: NewJob) -> int:
    return sum(tokens_in(entry.journal) for entry in await log_entries(queue, job.id, 0))


@contextlib.asynccontextmanager
async def lost_after(
    queue: JobQueue, store: Redis, redis_url: str, job: NewJob, n_tokens: int
) -> AsyncIterator[None]:
    """The job after its worker has written so many tokens and was lost; it is queued again."""

    async def never(buffer: OutputBuffer, result: JobResult) -> str:
        return await asyncio.get_running_loop().create_future()

    async with serving(queue, slots=4, worker="w-lost") as loop:
        loop.publisher.finish = never  # type: ignore[method-assign]

        async def written() -> bool:
            return await tokens_logged(queue, job) >= n_tokens

        await eventually(written, f"{n_tokens} tokens are written")
        leased = loop.runs[job.id].job
    kill(loop)
    expire_lease(store, leased)
    assert await queue.reap(0, LEASE_S) == {job.id: "queued"}
    yield


def kill(loop: WorkerLoop) -> None:
    """The publisher has ended already, so nothing is sent any more."""
    for task in loop.runs.tasks:
        task.cancel()


async def ended(queue: JobQueue, redis_url: str, job: NewJob) -> tuple[Job, list[Entry]]:
    """The job and its log, after another worker has run it."""
    async with serving(queue, slots=4, worker="w-next"):

        async def done() -> Job | None:
            shown = await queue.get(job.id)
            return shown if shown and shown.state.terminal else None

        shown = await eventually(done, "the job has ended")
    assert shown is not None
    return shown, await log_entries(queue, job.id, 0)


def answered(frames: list[Any]) -> bytes:
    """The bytes of a stream; asserts that no frame is missing, repeated or behind the end."""
    frames = [frame for frame in frames if frame[2] != FrameKind.STARTED]
    assert [frame[1] for frame in frames] == list(range(1, len(frames) + 1))
    *chunks, last = frames
    assert last[2] in LAST
    decoder = DeltaDecoder()
    return b"".join([decoder.decode(items or ()) for *_, items in chunks])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_tokens", [1, N_TOKENS // 2, N_TOKENS])
async def test_a_lost_workers_job_is_continued(
    queue: JobQueue,
    store: Redis,
    redis_url: str,
    gateway: ChannelSubscriber,
    stream: bool,
    n_tokens: int,
) -> None:
    """With all tokens written, only the result is missing, and no further token is generated."""
    body = chat(N_TOKENS, ignore_eos=True, stream=stream)
    job = make_job(body=body, stream=stream, ttl_s=300.0)
    await submit_one(queue, job, 100)
    async with lost_after(queue, store, redis_url, job, n_tokens):
        before = await log_entries(queue, job.id, 0)
    shown, entries = await ended(queue, redis_url, job)
    assert (shown.state, [each.outcome for each in shown.attempts]) == (
        "completed",
        ["worker_lost", "completed"],
    )
    assert shown.usage is not None
    assert shown.usage["completion_tokens"] == N_TOKENS
    assert entries[: len(before)] == before
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.end for entry in entries if entry.end or entry.lost] == ["completed"]
    assert sum(tokens_in(entry.journal) for entry in entries) == entries[-1].tokens == N_TOKENS
    if n_tokens == N_TOKENS:
        assert all(not tokens_in(entry.journal) for entry in entries[len(before) :])
    if stream:
        sent = answered(gateway.frames())
        assert sent.count(b"[DONE]") == 1
        assert sent.count(b'"content":') == N_TOKENS + 1  # and the first, with the role
        assert sent.count(b'"finish_reason":"length"') == 1
    else:
        assert shown.result.count(b'"finish_reason":"length"') == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_whose_log_is_damaged_begins_anew_or_fails(
    queue: JobQueue, store: Redis, redis_url: str, stream: bool
) -> None:
    job = make_job(body=chat(N_TOKENS, ignore_eos=True, stream=stream), stream=stream)
    await submit_one(queue, job, 100)
    async with lost_after(queue, store, redis_url, job, N_TOKENS // 2):
        store.lset(keys.log(job.shard, job.id), 0, b"\xc1 damaged")
    shown, entries = await ended(queue, redis_url, job)
    outcomes = [each.outcome for each in shown.attempts]
    assert outcomes[:2] == ["worker_lost", "not_continued"]
    if stream:
        assert (shown.state, shown.error_code in {"worker_lost", "log_lost"}) == ("failed", True)
        return
    assert (shown.state, outcomes[2:]) == ("completed", ["completed"])
    assert sum(tokens_in(entry.journal) for entry in entries) == N_TOKENS
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
