"""A worker's loop on a real queue, with a simulated engine."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.job import NewJob
from shared.job.log import Transcript, read_journal
from shared.platform import logs
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store import keys
from shared.store.subscription import Subscription
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, Case
from worker.core.control import ControlChannel
from worker.core.jobs import Jobs
from worker.core.run import Outcome, Run
from worker.engines.simulated.engine import SimulatedEngine


@asynccontextmanager
async def serving(
    case: Case, name: str = "w-1", *, slots: int = 4, step_ms: float = 2
) -> AsyncIterator[Jobs]:
    """A worker that claims and runs jobs."""
    engine = SimulatedEngine(
        Settings(sim_step_ms=step_ms, sim_step_us_per_seq=0, sim_max_num_seqs=slots)
    )
    await engine.start()
    metrics = WorkerMetrics(CollectorRegistry())
    jobs = Jobs(case.queue, POOL, name, engine, metrics, kv_high_watermark=0.95)
    channel = ControlChannel(jobs)
    subscription = Subscription(
        case.queue.servers, 0, keys.control_channel(name),
        lambda message: channel.on_message([0], message),
    )  # fmt: skip
    tasks = [asyncio.create_task(work) for work in (subscription.run(), jobs.run())]
    try:
        await subscription.connected.wait()
        yield jobs
    finally:
        await end([*tasks, *jobs.tasks])
        engine.close()


async def ask(case: Case, max_tokens: int, **changes: Any) -> NewJob:
    """Submit a chat of so many tokens."""
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": changes.get("stream", True),
    }
    return await case.submit(body=json.dumps(body).encode(), **changes)


async def ended(case: Case, job: NewJob) -> str:
    """The state in which the job ends."""

    async def is_over() -> str:
        state = await case.state(job)
        return "" if state in ("queued", "in_progress") else state

    return await eventually(is_over, f"{job.id} has ended")


async def has_tokens(case: Case, job: NewJob, count: int) -> None:
    """Returns when the log of the job has so many entries with output."""

    async def are_there() -> bool:
        return sum(entry.journal is not None for entry in await case.log(job)) >= count

    await eventually(are_there, f"{count} entries of {job.id}")


async def text(case: Case, job: NewJob) -> str:
    """What was generated for it."""
    transcript = Transcript.empty()
    for entry in await case.log(job):
        transcript.add(read_journal(entry.journal, entry.items))
    (choice,) = transcript.choices()
    return str(choice["text"])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_that_is_given_back_is_continued_by_another_worker(
    case: Case, stream: bool
) -> None:
    async with serving(case, step_ms=0) as worker:
        whole = await ask(case, 60, stream=stream)
        assert await ended(case, whole) == "completed"

        async def has_none() -> bool:
            return not worker.runs

        await eventually(has_none, "its run has ended")
    async with serving(case, "w-2", step_ms=5) as worker:
        job = await ask(case, 60, stream=stream)
        await has_tokens(case, job, 3)
        await worker.release_all("drained")
        assert await case.state(job) == "queued"
        assert worker.publisher.outputs() == []
    async with serving(case, "w-3", step_ms=0):
        assert await ended(case, job) == "completed"
    assert await text(case, job) == await text(case, whole)
    (record,) = await case.queue.get(job.id)
    assert record is not None
    assert [attempt.worker for attempt in record.attempts] == ["w-2", "w-3"]
    assert record.usage is not None
    assert record.usage["completion_tokens"] == 60


async def test_a_run_that_fails_counts_as_a_lost_attempt(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Run) -> Outcome:
        raise RuntimeError("broken")

    monkeypatch.setattr(Run, "execute", fail)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.formatter(as_json=True))
    monkeypatch.setattr(logging.getLogger("flotilla"), "handlers", [handler])
    async with serving(case, slots=1):
        job = await ask(case, 4)
        assert await ended(case, job) == "failed"
    assert case.record(job.id)["error_code"] == "too_many_attempts"
    lines = [json.loads(line) for line in stream.getvalue().splitlines() if "run failed" in line]
    failures = [line for line in lines if line["message"] == "run failed"]
    assert [(line["job_id"], line["attempt"]) for line in failures] == [
        (job.id, attempt) for attempt in (1, 2, 3)
    ]
    assert failures[0]["exception"].endswith("RuntimeError: broken")


async def test_a_paused_worker_claims_nothing_until_it_may(case: Case) -> None:
    async with serving(case) as worker:
        await worker.pause("paused by an operator")
        job = await ask(case, 4)
        worker.claim_again()
        (claims,) = worker.claims
        await claims.settled.wait()
        assert await case.state(job) == "queued"
        worker.room.paused = ""
        worker.claim_again()
        assert await ended(case, job) == "completed"


async def test_jobs_of_a_dead_engine_are_blamed_if_they_have_begun(case: Case) -> None:
    async with serving(case, slots=1, step_ms=5) as worker:
        job = await ask(case, 8000)
        await has_tokens(case, job, 1)
        await worker.release_all("engine_died", blame=True)
    assert case.place(job) == "first"  # it had output
    (record,) = await case.queue.get(job.id)
    assert record is not None
    assert [attempt.outcome for attempt in record.attempts] == ["engine_died"]


async def test_what_the_engine_has_done_is_counted_for_the_heartbeats(case: Case) -> None:
    async with serving(case) as worker:
        jobs = [await ask(case, tokens) for tokens in (3, 5)]
        for job in jobs:
            assert await ended(case, job) == "completed"

        async def are_over() -> bool:
            return not worker.runs

        await eventually(are_over, "both runs are over")
        totals = worker.totals
        assert (totals.finished, totals.output_tokens) == (2, 8)
        assert totals.prompt_tokens > 0
        assert totals.job_s > 0
