"""The worker's loop on a real queue: what others do to its jobs while it has something to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.platform.metrics import WorkerMetrics
from shared.platform.settings import Settings
from shared.platform.tasks import end
from shared.protocol import keys
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Transcript, read_journal
from shared.protocol.states import JobEvent, JobState
from shared.protocol.step_log import FLUSH_AFTER
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    Listener,
    answer,
    grow_old,
    make_job,
    pending,
    submit,
    take_one,
)
from tests.redis.loops import chat, serving
from tests.waiting import eventually
from worker.engines.simulated.engine import SimulatedEngine
from worker.run.executor import Executor
from worker.run.job_run import JobRun


@pytest.fixture
async def loop(queue: JobQueue) -> AsyncIterator[Executor]:
    """A loop that sends what its runs say, and does nothing else."""
    loop = Executor(
        queue,
        [],
        SimulatedEngine(Settings()),
        WorkerMetrics(CollectorRegistry()),
        pool=POOL,
        worker_id=WORKER,
        lease_s=10.0,
        kv_high_watermark=0.95,
    )
    publishing = asyncio.create_task(loop.publisher.run())
    yield loop
    await end([publishing])


async def takes_in_hand(loop: Executor, queue: JobQueue) -> JobRun:
    """A run of the only job that waits; it is not carried out."""
    run = JobRun(await take_one(queue), loop._engine, loop.publisher, loop._metrics)
    loop.runs[run.job.id] = run
    return run


@pytest.mark.parametrize("together", [True, False])
async def test_a_refused_write_of_an_old_lease_leaves_the_new_one_alone(
    queue: JobQueue, loop: Executor, together: bool
) -> None:
    await submit(queue)
    old = await takes_in_hand(loop, queue)
    await loop.lease.renew(0)
    await queue.release([old.job], "drained", blame=False)
    new = await takes_in_hand(loop, queue)
    job_id = new.job.id

    async def logged() -> list[object]:
        return [entry.items for entry in await queue.entries(job_id, 0)]

    async def old_refused() -> bool:
        return old.buffer.discarded

    async def new_logged() -> bool:
        return await logged() == [(b"of the new run",)]

    old.buffer.chunk(b"of the old run")
    if not together:
        await eventually(old_refused, "the old run's write was refused")
        assert await logged() == []
    new.buffer.chunk(b"of the new run")
    await eventually(new_logged, "the new run's write stands in the log, and nothing else")
    assert (old.buffer.discarded, new.buffer.discarded) == (True, False)


async def test_who_gets_a_job_anew_lets_go_of_the_old_lease_at_once(
    queue: JobQueue, loop: Executor
) -> None:
    await submit(queue, body=chat(4000))
    old = await takes_in_hand(loop, queue)
    await queue.release([old.job], "drained", blame=False)
    loop._start(await take_one(queue))
    assert old.buffer.discarded, "though it has said nothing that could be refused"
    assert not loop.runs[old.job.id].buffer.discarded
    await end(list(loop._tasks))


async def test_a_refused_write_of_one_job_keeps_no_other_back(
    queue: JobQueue, loop: Executor
) -> None:
    await submit(queue)
    lost = await takes_in_hand(loop, queue)
    await submit(queue, gateway="")
    kept = await takes_in_hand(loop, queue)
    await loop.lease.renew(0)
    await queue.cancel(lost.job.id, TENANT)
    await queue.watch(kept.job.id, GATEWAY, follow=True)
    for run in (lost, kept):
        run.buffer.chunk(b"x")

    async def logged() -> bool:
        return len(await queue.entries(kept.job.id, 0)) == 1

    await eventually(logged, "what the other job says stands in its log")
    assert (lost.buffer.discarded, kept.buffer.discarded) == (True, False)
    assert (kept.buffer.watchers, kept.buffer.subscribers) == (GATEWAY, GATEWAY)
    assert [entry.end for entry in await queue.entries(lost.job.id, 0)] == ["cancelled"]


async def test_what_a_lost_run_has_said_is_not_put_into_the_log_of_the_next_one(
    queue: JobQueue, store: Redis, loop: Executor
) -> None:
    async def say(run: JobRun, n: int) -> None:
        run.buffer.delta(0, 0, [n], "x")

        async def said() -> bool:
            last = await queue.last_entry(run.job.id)
            return last is not None and last.seq == n

        await eventually(said, f"entry {n} of {run.job.id}")

    await submit(queue, stream=False)
    failed = await takes_in_hand(loop, queue)
    await submit(queue, gateway="")
    other = await takes_in_hand(loop, queue)
    await say(failed, 1)
    del loop.runs[failed.job.id]  # as when a run fails by a bug of ours; the reaper decides then
    grow_old(store, failed.job)
    assert await queue.reap(0, LEASE_S) == {failed.job.id: "queued"}
    for n in range(1, FLUSH_AFTER + 2):
        await say(other, n)
    assert not store.exists(keys.log(0, failed.job.id))


async def test_who_begins_to_listen_hears_every_step_from_then_on(
    queue: JobQueue, redis_url: str, other_gateway: Listener
) -> None:
    async with serving(queue, redis_url, slots=4):
        job = make_job(body=chat(300, stream=True, ignore_eos=True), gateway="")
        await queue.submit(job, 100)

        async def speaks() -> bool:
            return bool(await queue.entries(job.id, 0))

        await eventually(speaks, "the job speaks")
        await queue.watch(job.id, "gw-2", follow=True)
        before = await queue.entries(job.id, 0)

        async def done() -> bool:
            ended = await queue.get(job.id)
            return ended is not None and ended.state is JobState.COMPLETED

        await eventually(done, "the job is done")
    frames, entries = other_gateway.frames(), await queue.entries(job.id, 0)
    assert len(before) < len(entries)
    assert not before[-1].end, "it was watched while it ran"
    heard = [frame[1] for frame in frames]
    assert heard == list(range(heard[0], len(entries) + 1))
    assert heard[0] <= len(before) + 1
    assert frames[-1][2] == FrameKind.DONE
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert not any(entry.lost for entry in entries)


async def test_a_job_that_comes_back_to_the_worker_that_lost_it_is_done_once(
    queue: JobQueue, redis_url: str, store: Redis
) -> None:
    async with serving(queue, redis_url, slots=4) as loop:
        job = make_job(body=chat(300, ignore_eos=True), stream=False, gateway="")
        await queue.submit(job, 100)

        async def speaks() -> bool:
            return bool(await queue.entries(job.id, 0))

        await eventually(speaks, "the job speaks")
        old = loop.runs[job.id]
        await queue.release([old.job], "why", blame=False)

        async def done() -> bool:
            ended = await queue.get(job.id)
            return ended is not None and ended.state is JobState.COMPLETED

        await eventually(done, "the job is done")
        assert old.buffer.discarded
    ended, entries = await queue.get(job.id), await queue.entries(job.id, 0)
    assert ended is not None
    assert [attempt.outcome for attempt in ended.attempts] == ["why", "completed"]
    assert ended.usage is not None
    assert ended.usage["completion_tokens"] == 300
    transcript = Transcript.empty()
    for entry in entries:
        transcript.add(read_journal(entry.journal, entry.items))
    assert transcript.completion_tokens == 300
    assert [entry.end for entry in entries if entry.end or entry.lost] == ["completed"]
    assert pending(store) == 0


async def test_an_end_that_was_outrun_says_nothing(
    queue: JobQueue, loop: Executor, gateway: Listener
) -> None:
    """The worker is about to say that the job has failed; somebody else has said it just before."""
    await submit(queue)
    run = await takes_in_hand(loop, queue)
    run.buffer.chunk(b"first")

    async def said() -> bool:
        return await queue.last_entry(run.job.id) is not None

    await eventually(said, "it speaks")
    assert await queue.release([run.job], "why", blame=False) == {run.job.id: "failed"}
    gateway.frames()
    run.buffer.chunk(b"last")
    run.final_state = JobState.FAILED
    last = answer(event=JobEvent.FAIL, error_code="engine_error")
    await loop.publisher.finish(run.buffer, last)
    assert gateway.frames() == []
