"""A worker on a real queue: what it claims, sends and gives back. Its engine is the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.lanes import FLEX
from shared.job.result import PIECE_BYTES, n_pieces
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store import keys
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.queue import HeldJob, pack_operation
from shared.store.subscription import Subscription
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, TENANT, Case, make_answer
from worker.core import claim as claim_module
from worker.core import publish as publish_module
from worker.core.control import ControlChannel
from worker.core.heartbeat import Heartbeat
from worker.core.jobs import Jobs
from worker.core.output import Output
from worker.core.resume import read_past
from worker.engines.interface import Capacity, Load


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

    def __init__(self, case: Case, name: str, slots: int) -> None:
        self.name = name
        self.outputs: dict[str, Output] = {}
        self.gone: dict[str, str] = {}
        """The jobs that are its own no more -> their states."""
        engine: Any = Engine(self, slots)
        metrics = WorkerMetrics(CollectorRegistry())
        super().__init__(case.queue, POOL, name, engine, metrics, kv_high_watermark=0.9)
        self.control = ControlChannel(self)
        self.subscription = Subscription(
            case.queue.servers, 0, keys.control_channel(name),
            lambda message: self.control.on_message([0], message),
        )  # fmt: skip
        self.started = [asyncio.create_task(self.subscription.run())]

    def start(self, job: HeldJob) -> None:
        """Wait for the test."""
        self.outputs[job.id] = output = Output(job, self.publisher)
        self.publisher.of(output).add(output)
        self.room.started(output)

    def lost(self, output: Output, state: str) -> None:
        """Note it."""
        self.gone[output.id] = state
        self.outputs.pop(output.id, None)

    async def release(self, outputs: Sequence[Output], reason: str, *, blame: bool = False) -> None:
        """Forget the jobs that are given back."""
        for output in outputs:
            self.outputs.pop(output.id, None)
        await super().release(outputs, reason, blame=blame)

    async def open(self) -> None:
        """Hear control messages, and send."""
        await self.subscription.connected.wait()
        self.started.append(asyncio.create_task(self.publisher.run()))

    def run_claims(self) -> None:
        """Claim as a worker does."""
        self.started.append(asyncio.create_task(self.claims[0].run()))

    async def claim(self) -> list[Output]:
        """Claim once; the outputs of the jobs that came."""
        before = set(self.outputs)
        await self.claims[0].claim()
        return [output for job_id, output in self.outputs.items() if job_id not in before]

    async def claim_one(self) -> Output:
        """Claim the only job."""
        (output,) = await self.claim()
        return output

    def step(self, *outputs: Output, text: str = "x") -> None:
        """A step of the engine, with a token of each."""
        for output in outputs:
            if not output.reached_engine:
                output.prompt(0, 5)
            output.delta(0, 0, (7,), text)
            if output.job.stream:
                output.chunk(text.encode())
        self.publisher.on_step()

    async def finish(self, output: Output, **answer: Any) -> str:
        """End a job; the outcome."""
        async with asyncio.timeout(60):
            outcome = await self.publisher.finish(output, make_answer(**answer))
        self.outputs.pop(output.id, None)
        self.claims[0].wake()
        return outcome


class Workers:
    """The workers of a test."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.all: list[Worker] = []

    async def start(self, name: str = "w-1", slots: int = 100) -> Worker:
        """One more."""
        self.all.append(Worker(self._case, name, slots))
        await self.all[-1].open()
        return self.all[-1]


@pytest.fixture
async def workers(case: Case, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    monkeypatch.setattr(publish_module, "_RETRY_CAP_S", 0.01)
    workers = Workers(case)
    yield workers
    await end([task for worker in workers.all for task in worker.started])


@pytest.fixture
async def worker(workers: Workers) -> Worker:
    return await workers.start()


async def logged(case: Case, job: Any, *events: str) -> None:
    """Returns when the job's log is this."""

    async def are_there() -> bool:
        try:
            return await case.events(job) == list(events)
        except StoreUnavailable:  # Redis was a replica a moment ago
            return False

    await eventually(are_there, f"{events} in the log of {job.id}")


# --- what it sends ---


async def test_a_step_goes_to_the_log_and_to_the_gateways(case: Case, worker: Worker) -> None:
    gateway, job = case.gateway(), await case.submit()
    output = await worker.claim_one()
    for text in "ab":
        worker.step(output, text=text)
        await eventually_sent(worker)
    output.chunk(b"c")
    assert await worker.finish(output) == "ok"
    assert await case.events(job) == ["claimed", "a", "b", "c", "completed"]
    assert [text for _, _, text in gateway.frames()] == ["claimed", "a", "b", "ccompleted"]


async def test_only_followers_get_the_steps_of_a_plain_answer(case: Case, worker: Worker) -> None:
    gateway, job = case.gateway(), await case.submit(stream=False)
    output = await worker.claim_one()
    worker.step(output)
    await eventually_sent(worker)
    assert [entry.position.number for entry in await case.log(job)] == [1, 2]
    assert gateway.frames() == []
    await case.queue.watch(job.id, "gw-1", follow=True)

    async def follows() -> bool:
        worker.step(output)
        return bool(gateway.frames())

    await eventually(follows, "frames")


async def test_a_new_watcher_gets_every_step_from_then_on(case: Case, worker: Worker) -> None:
    job = await case.submit()
    output = await worker.claim_one()
    worker.step(output, text="a")
    await logged(case, job, "claimed", "a")
    other = case.gateway("gw-2")
    await case.queue.watch(job.id, "gw-2", follow=False)
    worker.step(output, text="b")
    await logged(case, job, "claimed", "a", "b")

    async def is_known() -> bool:
        return "gw-2" in output.subscribers

    await eventually(is_known, "the watcher is known")
    worker.step(output, text="c")
    await logged(case, job, "claimed", "a", "b", "c")
    assert [text for _, _, text in other.frames()] == ["c"]


async def test_long_results_leave_in_several_calls_and_longer_ones_in_pieces(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "_CALL_BYTES", 50_000)
    jobs = [await case.submit(stream=False) for _ in range(5)]
    await worker.claim()
    bodies = [bytes([97 + n]) * 30_000 for n in range(4)] + [b"e" * (2 * PIECE_BYTES + 1)]
    answers = zip(worker.outputs.values(), bodies, strict=True)
    outcomes = await asyncio.gather(*(worker.finish(each, body=body) for each, body in answers))
    assert outcomes == ["ok"] * 5
    for job, body in zip(jobs, bodies, strict=True):
        (stored,) = await case.queue.get(job.id)
        assert stored is not None
        pieces = [await case.queue.piece(job.id, n) for n in range(n_pieces(stored.result_bytes))]
        assert stored.result or b"".join(piece or b"" for piece in pieces) == body
        assert stored.result in (b"", body)


async def test_a_job_that_others_have_ended_is_lost_alone(case: Case, worker: Worker) -> None:
    cancelled, gone, kept = [await case.submit() for _ in range(3)]
    await worker.claim()
    outputs = dict(worker.outputs)
    await case.queue.cancel(TENANT, cancelled.id)
    case.server.delete(keys.job(0, gone.id), keys.log(0, gone.id))
    worker.step(*outputs.values())
    await logged(case, kept, "claimed", "x")

    async def are_lost() -> bool:
        return len(worker.gone) == 2

    await eventually(are_lost, "both are lost")
    assert worker.gone[cancelled.id] in ("cancelled", "revoked")
    assert worker.gone[gone.id] == "gone"
    assert await case.events(cancelled) == ["claimed", "cancelled"]
    assert await worker.finish(outputs[kept.id]) == "ok"


async def test_the_outcome_of_a_result_tells_who_has_ended_the_job(
    case: Case, workers: Workers, worker: Worker
) -> None:
    jobs = [await case.submit() for _ in range(2)]
    first, second = await worker.claim()
    await end([worker.started[0]])  # it hears no hints
    await case.queue.cancel(TENANT, jobs[0].id)
    assert await worker.finish(first) == "cancelled"
    second.discarded = True
    assert await worker.finish(second) == "discarded"


async def test_a_result_whose_reply_was_lost_is_repeated_and_stored_once(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, output, emit = await case.submit(), await worker.claim_one(), case.queue.emit
    calls = 0

    def lose_the_reply(*arguments: Any) -> asyncio.Future[Any]:
        nonlocal calls
        calls += 1
        if calls > 1:
            return emit(*arguments)
        lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        emit(*arguments).add_done_callback(lambda _: lost.set_exception(StoreTimeout("lost")))
        return lost

    monkeypatch.setattr(case.queue, "emit", lose_the_reply)
    output.chunk(b"x")
    assert await worker.finish(output) == "ok"
    assert calls == 2
    assert await case.events(job) == ["claimed", "x", "completed"]
    assert worker.gone == {}


async def test_lost_connections_cost_no_job_and_no_entry(case: Case, worker: Worker) -> None:
    job, output = await case.submit(), await worker.claim_one()
    texts = "abcdef"
    for count, text in enumerate(texts, 1):
        case.queue.give_up(0, "the test")
        worker.step(output, text=text)
        await logged(case, job, "claimed", *texts[:count])
    assert worker.gone == {}


async def test_output_is_kept_while_redis_refuses_writes(case: Case, worker: Worker) -> None:
    if case.server.info("cluster")["cluster_enabled"]:
        pytest.skip("the master of a cluster is made a replica otherwise")
    job, output = await case.submit(), await worker.claim_one()
    case.server.replicaof("127.0.0.1", 1)  # read-only, with a primary that does not exist
    try:
        worker.step(output, text="a")
        await asyncio.sleep(0.1)
        worker.step(output, text="b")
    finally:
        case.server.replicaof("NO", "ONE")
    await logged(case, job, "claimed", "a", "b")


async def test_entries_that_redis_has_lost_are_sent_again(case: Case, worker: Worker) -> None:
    job, output = await case.submit(), await worker.claim_one()
    worker.step(output, text="a")
    await logged(case, job, "claimed", "a")
    older = case.server.dump(keys.log(0, job.id))
    worker.step(output, text="b")
    await logged(case, job, "claimed", "a", "b")

    await eventually_sent(worker)
    case.server.restore(keys.log(0, job.id), 0, older, replace=True)
    case.queue.give_up(0, "the server was another one")
    worker.step(output, text="c")
    await logged(case, job, "claimed", "a", "b", "c")
    assert await worker.finish(output) == "ok"


async def test_a_job_whose_lost_entries_are_not_kept_goes_to_others(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.publish.KEPT_S", -1)
    job, output = await case.submit(), await worker.claim_one()
    older = case.server.dump(keys.log(0, job.id))
    worker.step(output, text="a")
    await logged(case, job, "claimed", "a")

    await eventually_sent(worker)
    case.server.restore(keys.log(0, job.id), 0, older, replace=True)
    case.queue.give_up(0, "the server was another one")
    worker.step(output, text="b")

    async def is_lost() -> bool:
        return worker.gone == {job.id: "queued"}

    await eventually(is_lost, "the worker gives it up")
    assert await worker.claims[0].claim() is False  # Redis has more of its jobs than it knows
    await worker.claims[0].claim()
    again = await worker.claim_one()
    assert again.job.attempt == 2


async def test_the_past_is_read_up_to_the_own_claim(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.resume._PAGE", 2)
    job, output = await case.submit(), await worker.claim_one()
    assert await read_past(case.queue, output.job) == []
    for text in "abc":
        worker.step(output, text=text)
        await eventually_sent(worker)
    await worker.release([output], "drained")
    second = (await worker.claim_one()).job
    entries = await read_past(case.queue, second)
    assert entries is not None
    assert [entry.event for entry in entries] == ["claimed", "", "", "", "handed_over"]
    case.server.xdel(keys.log(0, job.id), str(entries[1].position))
    assert await read_past(case.queue, second) is None


async def eventually_sent(worker: Worker) -> None:
    """Returns when Redis has acknowledged all output."""

    async def are_sent() -> bool:
        return not any(each._unsent or each._in_flight for each in worker.publisher.shards)

    await eventually(are_sent, "all output is sent")


# --- what it claims ---


async def test_a_submitted_job_wakes_an_idle_worker(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "ASK_S", 600.0)
    worker.run_claims()

    async def is_idle() -> bool:
        return case.server.zscore(f"{case.base}idle:{POOL}", worker.name) is not None

    await eventually(is_idle, "it is noted as idle")
    job = await case.submit()

    async def has_it() -> bool:
        return job.id in worker.outputs

    await eventually(has_it, "it has the job")


async def test_it_claims_when_room_becomes_free_and_never_more(
    case: Case, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "ASK_S", 600.0)
    jobs = [await case.submit() for _ in range(3)]
    worker = await workers.start(slots=1)
    worker.run_claims()
    for job in jobs:

        async def has_it(job_id: str = job.id) -> bool:
            return list(worker.outputs) == [job_id]

        await eventually(has_it, "it has this job alone")
        assert await worker.finish(worker.outputs[job.id]) == "ok"


@pytest.mark.parametrize("paused", [False, True])
async def test_jobs_whose_claim_was_lost_go_to_others(
    case: Case, worker: Worker, paused: bool
) -> None:
    job = await case.submit()
    await case.worker(worker.name, heard=False).claim_one()  # the reply is lost
    worker.room.paused = "paused" if paused else ""
    worker.run_claims()

    async def goes_on() -> bool:
        return "handed_over" in await case.events(job)

    await eventually(goes_on, "it is handed over")
    if not paused:

        async def has_it() -> bool:
            return job.id in worker.outputs

        await eventually(has_it, "it has the job")


# --- what it gives back ---


async def test_a_drain_hands_over_as_many_jobs_as_others_have_room_for(
    case: Case, workers: Workers, worker: Worker
) -> None:
    jobs = [await case.submit() for _ in range(4)]
    outputs = await worker.claim()
    worker.step(*outputs)
    await eventually_sent(worker)
    other = await workers.start("w-2", slots=3)
    await other.claims[0].claim()  # it is noted as idle
    worker.room.draining = True
    await worker.hand_over()
    assert len(worker.outputs) == 1
    assert len(await other.claim()) == 3
    for output in other.outputs.values():
        entries = await read_past(case.queue, output.job)
        assert entries is not None
        assert [item for entry in entries for item in entry.items][-1] == b"x"
    (left,) = worker.outputs.values()
    assert await worker.finish(left) == "ok"
    assert {job.id for job in jobs} == {*other.outputs, left.id}


async def test_a_flex_job_makes_room_for_a_better_one(case: Case, workers: Workers) -> None:
    worker = await workers.start(slots=2)
    flex = [await case.submit(lane=FLEX) for _ in range(2)]
    await worker.claim()
    worker.step(*worker.outputs.values())
    await worker.claims[0].claim()  # tells that it would make room
    worker.run_claims()
    job = await case.submit()

    async def has_it() -> bool:
        return job.id in worker.outputs

    await eventually(has_it, "the better job runs")
    assert len(worker.outputs) == 2
    states = {await case.state(each) for each in flex}
    assert states == {"in_progress", "queued"}


async def test_without_an_answer_jobs_are_given_up_here(
    case: Case, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.jobs._GIVE_BACK_S", 0.1)
    job, output = await case.submit(), await worker.claim_one()

    async def fail(*_: Any) -> None:
        raise StoreTimeout("lost")

    monkeypatch.setattr(case.queue, "give_back", fail)
    await worker.release([output], "engine_died")
    assert worker.publisher.shards[0].outputs == {}
    assert await case.state(job) == "in_progress"
    assert await worker.claims[0].claim() is False  # Redis has more of its jobs than it knows


# --- the control channel ---


async def test_control_messages(case: Case, worker: Worker) -> None:
    operation = pack_operation("op-1", "sleep", b"{}")
    for message in (operation, operation, b"", b"\x00", b"\x91\x09", b"\xff\xff"):
        worker.control.on_message([0], message)
    assert worker.control.operator_calls.get_nowait() == ("op-1", "sleep", b"{}")
    assert worker.control.operator_calls.empty()
    (samples,) = (metric.samples for metric in worker.metrics.malformed.collect())
    assert sum(s.value for s in samples if s.name.endswith("_total")) == 4


# --- the heartbeat ---


async def test_heartbeats_go_on_while_the_event_loop_turns(
    case: Case, kind: Any, monkeypatch: pytest.MonkeyPatch
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
