"""The loop on a real queue: its jobs are cancelled, requeued and watched while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job_log import Transcript, read_journal
from shared.job.states import JobEvent, JobState
from shared.job.step_log import FLUSH_AFTER
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store.interface import StoreUnavailable
from shared.store.redis.job_queue import JobQueue
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim_one,
    expire_lease,
    log_entries,
    make_job,
    pending,
    submit,
    submit_one,
)
from tests.redis.worker_loops import chat, serving
from worker.core import releases
from worker.core.job_run import JobRun, Outcome
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership
from worker.engines.simulated.engine import SimulatedEngine


@pytest.fixture
async def loop(queue: JobQueue) -> AsyncIterator[WorkerLoop]:
    """A loop that sends the output of its runs, and does nothing else."""
    loop = WorkerLoop(
        Membership(queue, POOL, WORKER, 10.0),
        SimulatedEngine(Settings()),
        WorkerMetrics(CollectorRegistry()),
        kv_high_watermark=0.95,
    )
    publishing = asyncio.create_task(loop.publisher.run())
    yield loop
    await end([publishing])


async def leased_run(loop: WorkerLoop, queue: JobQueue) -> JobRun:
    """A run of the only queued job; it is not executed."""
    job, metrics = await claim_one(queue), loop._metrics
    run = JobRun(job, loop._engine, loop.publisher, metrics, queue)
    loop.runs[run.job.id] = run
    return run


@pytest.mark.parametrize("together", [True, False])
async def test_a_refused_write_of_an_old_lease_leaves_the_new_one_alone(
    queue: JobQueue, loop: WorkerLoop, together: bool
) -> None:
    await submit(queue)
    old = await leased_run(loop, queue)
    await loop.lease.renew(0)
    await queue.release([old.job], "drained", blame=False)
    new = await leased_run(loop, queue)
    job_id = new.job.id

    async def logged() -> list[object]:
        return [entry.items for entry in await log_entries(queue, job_id, 0)]

    async def old_refused() -> bool:
        return old.buffer.discarded

    async def new_logged() -> bool:
        return await logged() == [(b"of the new run",)]

    old.buffer.chunk(b"of the old run")
    if not together:
        await eventually(old_refused, "the old run's write was refused")
        assert await logged() == []
    new.buffer.chunk(b"of the new run")
    await eventually(new_logged, "only the new run's write is in the log")
    assert (old.buffer.discarded, new.buffer.discarded) == (True, False)


async def test_a_job_that_is_leased_again_ends_its_old_run_at_once(
    queue: JobQueue, loop: WorkerLoop
) -> None:
    await submit(queue, body=chat(4000))
    old = await leased_run(loop, queue)
    await queue.release([old.job], "drained", blame=False)
    loop._start(await claim_one(queue))
    assert old.buffer.discarded, "although it has sent nothing that could be refused"
    assert not loop.runs[old.job.id].buffer.discarded
    await end(list(loop.runs.tasks))


async def test_a_refused_write_of_one_job_does_not_delay_another(
    queue: JobQueue, loop: WorkerLoop
) -> None:
    await submit(queue)
    lost = await leased_run(loop, queue)
    await submit(queue, gateway="")
    kept = await leased_run(loop, queue)
    await loop.lease.renew(0)
    await queue.cancel(lost.job.id, TENANT)
    await queue.watch(kept.job.id, GATEWAY, follow=True)
    for run in (lost, kept):
        run.buffer.chunk(b"x")

    async def logged() -> bool:
        return len(await log_entries(queue, kept.job.id, 0)) == 1

    await eventually(logged, "the output of the other job is in its log")
    assert (lost.buffer.discarded, kept.buffer.discarded) == (True, False)
    assert (kept.buffer.watchers, kept.buffer.subscribers) == (GATEWAY, GATEWAY)
    assert [entry.end for entry in await log_entries(queue, lost.job.id, 0)] == ["cancelled"]


async def test_the_output_of_a_lost_run_does_not_get_into_the_log_of_the_next_run(
    queue: JobQueue, store: Redis, loop: WorkerLoop
) -> None:
    async def send(run: JobRun, n: int) -> None:
        run.buffer.delta(0, 0, [n], "x")

        async def logged_last() -> bool:
            last = await queue.last_entry(run.job.id)
            return last is not None and last.seq == n

        await eventually(logged_last, f"entry {n} of {run.job.id}")

    await submit(queue, stream=False)
    failed = await leased_run(loop, queue)
    await submit(queue, gateway="")
    other = await leased_run(loop, queue)
    await send(failed, 1)
    # As if the run failed because of a bug; the reaper requeues the job.
    del loop.runs[failed.job.id]
    expire_lease(store, failed.job)
    assert await queue.reap(0, LEASE_S) == {failed.job.id: "queued"}
    for n in range(1, FLUSH_AFTER + 2):
        await send(other, n)
    assert [entry.seq for entry in await log_entries(queue, failed.job.id, 0)] == [1]


async def test_a_new_watcher_gets_every_step_from_then_on(
    queue: JobQueue, redis_url: str, other_gateway: ChannelSubscriber
) -> None:
    async with serving(queue, slots=4):
        job = make_job(body=chat(300, stream=True, ignore_eos=True), gateway="")
        await submit_one(queue, job, 100)

        async def has_output() -> bool:
            return bool(await log_entries(queue, job.id, 0))

        await eventually(has_output, "the job has output")
        await queue.watch(job.id, "gw-2", follow=True)
        before = await log_entries(queue, job.id, 0)

        async def done() -> bool:
            ended = await queue.get(job.id)
            return ended is not None and ended.state is JobState.COMPLETED

        await eventually(done, "the job is done")
    frames, entries = other_gateway.frames(), await log_entries(queue, job.id, 0)
    assert len(before) < len(entries)
    assert not before[-1].end, "it was watched while it ran"
    received = [frame[1] for frame in frames]
    assert received == list(range(received[0], len(entries) + 1))
    assert received[0] <= len(before) + 1
    assert frames[-1][2] == FrameKind.DONE
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert not any(entry.lost for entry in entries)


async def test_a_job_that_is_leased_again_to_the_same_worker_is_completed_once(
    queue: JobQueue, redis_url: str, store: Redis
) -> None:
    async with serving(queue, slots=4) as loop:
        job = make_job(body=chat(300, ignore_eos=True), stream=False, gateway="")
        await submit_one(queue, job, 100)

        async def has_output() -> bool:
            return bool(await log_entries(queue, job.id, 0))

        await eventually(has_output, "the job has output")
        old = loop.runs[job.id]
        await queue.release([old.job], "why", blame=False)

        async def done() -> bool:
            ended = await queue.get(job.id)
            return ended is not None and ended.state is JobState.COMPLETED

        await eventually(done, "the job is done")
        assert old.buffer.discarded
    ended, entries = await queue.get(job.id), await log_entries(queue, job.id, 0)
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


async def test_a_result_that_comes_too_late_publishes_nothing(
    queue: JobQueue, loop: WorkerLoop, gateway: ChannelSubscriber
) -> None:
    """The worker is about to end the job as failed; another process has just done so."""
    await submit(queue)
    run = await leased_run(loop, queue)
    run.buffer.chunk(b"first")

    async def logged_last() -> bool:
        return await queue.last_entry(run.job.id) is not None

    await eventually(logged_last, "it has output")
    assert await queue.restart(run.job, "why") == "failed"
    gateway.frames()
    run.buffer.chunk(b"last")
    run.final_state = JobState.FAILED
    last = answer(event=JobEvent.FAIL, error_code="engine_error")
    await loop.publisher.finish(run.buffer, last)
    assert gateway.frames() == []


class Failing:
    """`JobQueue.release` fails so many times first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> None:
        self.left = times
        release = JobQueue.release

        async def failing(queue: JobQueue, *args: Any, **options: Any) -> dict[str, str]:
            self.left -= 1
            if self.left >= 0:
                raise error
            return await release(queue, *args, **options)

        monkeypatch.setattr(JobQueue, "release", failing)


@pytest.mark.parametrize(("times", "state"), [(3, "queued"), (1000, "in_progress")])
async def test_a_release_that_fails_is_repeated_and_given_up_after_a_time(
    queue: JobQueue, loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch, times: int, state: str
) -> None:
    job = await submit(queue)
    run = await leased_run(loop, queue)
    Failing(monkeypatch, StoreUnavailable("away"), times)
    if state != "queued":
        monkeypatch.setattr(releases, "_TIMEOUT_S", 0.3)
    await loop.releases.some([run], "asleep")
    assert not loop.runs.known_jobs()
    shown = await queue.get(job.id)
    assert shown is not None
    assert shown.state == state


async def test_a_run_that_fails_ends_although_its_job_can_not_be_released(
    queue: JobQueue, loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(run: JobRun) -> Outcome:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(JobRun, "execute", fail)
    Failing(monkeypatch, ValueError("a malformed reply"), 1)
    await submit(queue)
    loop._start(await claim_one(queue))
    await asyncio.wait(set(loop.runs.tasks), timeout=20)
    assert not loop.runs


async def is_over(loop: WorkerLoop, job_id: str) -> bool:
    job = await loop._member.queue.get(job_id)
    return job is not None and job.state.terminal and not loop.runs


async def test_what_the_engine_has_done_is_counted_for_the_heartbeats(queue: JobQueue) -> None:
    async with serving(queue, slots=4) as loop:
        for n_tokens in (10, 40):
            job = await submit(queue, body=chat(n_tokens, ignore_eos=True))
            await eventually(partial(is_over, loop, job.id), "it has ended")
        totals = loop.runs.totals
        assert totals.prompt_tokens > 0
        assert totals.output_tokens == 50
        assert totals.job_s > 0
