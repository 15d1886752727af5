"""A worker on a real queue: what it claims, sends and gives back. The model (test_model.py) has the
same claims and publisher where connections, replies and data are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.result import PIECE_BYTES, n_pieces
from shared.job.rules import FLEX
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store import keys
from shared.store.errors import StoreTimeout
from shared.store.queue import HeldJob, pack_operation
from shared.store.subscription import Subscription
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, TENANT, Case, make_answer
from worker.core import claim as claim_module
from worker.core import publish as publish_module
from worker.core.control import ControlChannel
from worker.core.heartbeat import Heartbeat
from worker.core.jobs import Jobs
from worker.core.output import Output
from worker.core.run import Outcome, Run
from worker.engines.interface import Capacity, Load
from worker.engines.simulated.engine import SimulatedEngine


class Engine:
    """An engine that runs what reaches it."""

    dead = False

    def __init__(self, worker: Worker, slots: int) -> None:
        self.capacity = Capacity(max_num_seqs=slots, max_model_len=1000)
        self._worker = worker

    def load(self) -> Load:
        """The sequences in it."""
        outputs = self._worker.outputs.values()
        return Load(sum(each.reached_engine for each in outputs), 0.0)


class Worker(Jobs):
    """A worker whose jobs do not run: the test produces their output."""

    def __init__(self, case: Case, slots: int = 100) -> None:
        self.outputs: dict[str, Output] = {}
        engine: Any = Engine(self, slots)
        metrics = WorkerMetrics(CollectorRegistry())
        super().__init__(case.queue, POOL, "w-1", engine, metrics, kv_high_watermark=0.9)
        self.control = ControlChannel(self)
        self.subscription = Subscription(
            case.queue.servers, 0, keys.control_channel("w-1"),
            lambda message: self.control.on_message([0], message),
        )  # fmt: skip
        self.started = [
            asyncio.create_task(work) for work in (self.subscription.run(), self.publisher.run())
        ]

    def start(self, job: HeldJob) -> None:
        """Wait for the test."""
        self.outputs[job.id] = output = Output(job, self.publisher)
        self.publisher.of(output).add(output)
        self.room.started(output)

    def lost(self, output: Output, state: str) -> None:
        """Forget it."""
        self.outputs.pop(output.id, None)

    async def release(self, outputs: Sequence[Output], reason: str, *, blame: bool = False) -> None:
        """Forget the jobs that are given back."""
        for output in outputs:
            self.outputs.pop(output.id, None)
        await super().release(outputs, reason, blame=blame)

    def run_claims(self) -> None:
        """Claim as a worker does."""
        self.started.append(asyncio.create_task(self.claims[0].run()))

    async def finish(self, output: Output, **answer: Any) -> str:
        """End a job; the outcome."""
        async with asyncio.timeout(60):
            outcome = await self.publisher.finish(output, make_answer(**answer))
        self.outputs.pop(output.id, None)
        self.claims[0].wake()
        return outcome


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start(case: Case, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts a worker that hears control messages; it asks for jobs only when it is told."""
    monkeypatch.setattr(publish_module, "_RETRY_CAP_S", 0.01)
    monkeypatch.setattr(claim_module, "ASK_S", 600.0)
    workers: list[Worker] = []

    async def start(slots: int = 100) -> Worker:
        workers.append(Worker(case, slots))
        await workers[0].subscription.connected.wait()
        return workers[0]

    yield start
    await end([task for worker in workers for task in worker.started])


async def test_a_flex_job_makes_room_for_a_better_one(case: Case, start: Start) -> None:
    worker = await start(slots=2)
    flex = [await case.submit(lane=FLEX) for _ in range(2)]
    await worker.claims[0].claim()
    for output in worker.outputs.values():
        output.prompt(0, 5)
        output.delta(0, 0, (7,), "x")
    worker.publisher.on_step()
    await worker.claims[0].claim()  # tells that it would make room
    worker.run_claims()
    job = await case.submit()
    await eventually(lambda: job.id in worker.outputs, "the better job runs")
    assert len(worker.outputs) == 2
    assert {await case.state(each) for each in flex} == {"in_progress", "queued"}


async def test_long_results_leave_in_several_calls_and_longer_ones_in_pieces(
    case: Case, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "_CALL_BYTES", 50_000)
    worker = await start()
    jobs = [await case.submit(stream=False) for _ in range(5)]
    await worker.claims[0].claim()
    bodies = [bytes([97 + n]) * 30_000 for n in range(4)] + [b"e" * (2 * PIECE_BYTES + 1)]
    answers = zip(list(worker.outputs.values()), bodies, strict=True)
    outcomes = await asyncio.gather(*(worker.finish(each, body=body) for each, body in answers))
    assert outcomes == ["ok"] * 5
    for job, body in zip(jobs, bodies, strict=True):
        stored = await case.shown(job)
        pieces = [await case.queue.piece(job.id, n) for n in range(n_pieces(stored.result_bytes))]
        assert stored.result or b"".join(piece or b"" for piece in pieces) == body
        assert stored.result in (b"", body)


async def test_the_outcome_of_a_result_tells_who_has_ended_the_job(
    case: Case, start: Start
) -> None:
    worker = await start()
    jobs = [await case.submit() for _ in range(2)]
    await worker.claims[0].claim()
    first, second = worker.outputs.values()
    await end([worker.started[0]])  # it hears no hints
    await case.queue.cancel(TENANT, jobs[0].id)
    assert await worker.finish(first) == "cancelled"
    second.discarded = True
    assert await worker.finish(second) == "discarded"


async def test_without_an_answer_jobs_are_given_up_here(
    case: Case, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.jobs._GIVE_BACK_S", 0.1)
    job, worker = await case.submit(), await start()
    await worker.claims[0].claim()

    async def fail(*_: Any) -> None:
        raise StoreTimeout("lost")

    monkeypatch.setattr(case.queue, "give_back", fail)
    await worker.release(list(worker.outputs.values()), "engine_died", blame=True)
    assert worker.publisher.shards[0].outputs == {}
    assert await case.state(job) == "in_progress"
    assert await worker.claims[0].claim() is False  # Redis has more of its jobs than it knows


async def test_control_messages(start: Start) -> None:
    worker = await start()
    operation = pack_operation("op-1", "sleep", b"{}")
    for message in (operation, operation, b"", b"\x00", b"\x91\x09", b"\xff\xff"):
        worker.control.on_message([0], message)
    assert worker.control.operator_calls.get_nowait() == ("op-1", "sleep", b"{}")
    assert worker.control.operator_calls.empty()
    (samples,) = (metric.samples for metric in worker.metrics.malformed.collect())
    assert sum(s.value for s in samples if s.name.endswith("_total")) == 4


async def test_a_run_that_fails_counts_as_a_lost_attempt(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Run) -> Outcome:
        raise RuntimeError("broken")

    monkeypatch.setattr(Run, "execute", fail)
    engine = SimulatedEngine(Settings(sim_max_num_seqs=1))
    await engine.start()
    metrics = WorkerMetrics(CollectorRegistry())
    jobs = Jobs(case.queue, POOL, "w-1", engine, metrics, kv_high_watermark=0.95)
    running, job = asyncio.create_task(jobs.run()), await case.submit()
    await eventually(lambda: case.record(job.id)["state"] == "failed", "it fails")
    await end([running, *jobs.tasks])
    engine.close()
    assert case.record(job.id)["error_code"] == "too_many_attempts"
    assert caplog.text.count("RuntimeError: broken") == 3


async def test_heartbeats_go_on_while_the_event_loop_turns(
    case: Case, kind: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.heartbeat.LOOP_S", 0.3)
    monkeypatch.setattr("worker.core.heartbeat._TURN_S", 0.05)
    monkeypatch.setattr("worker.core.heartbeat.BEAT_S", 0.05)
    heartbeat, workers = Heartbeat(kind.url, 1, "w-1"), f"{case.base}workers"

    def beats() -> float:
        return float(case.server.zscore(workers, "w-1") or 0)

    async def beats_again() -> bool:
        before = beats()
        await asyncio.sleep(0.1)
        return beats() > before > 0

    heartbeat.start()
    try:
        await eventually(beats_again, "it beats")
        blocked_until = time.monotonic() + 60
        before = beats()
        time.sleep(0.5)  # noqa: ASYNC251, the loop stands still
        while beats() > before and time.monotonic() < blocked_until:
            before = beats()
            time.sleep(0.5)  # noqa: ASYNC251
        assert time.monotonic() < blocked_until
        await eventually(beats_again, "it beats again")
    finally:
        heartbeat.stop()
    before = beats()
    await asyncio.sleep(0.2)
    assert beats() == before
