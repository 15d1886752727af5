"""The publisher: one call per step and shard, in order, repeated until Redis accepts it.

The queue is a stub that records calls and replies as the test tells it. What the publisher does on
a real queue is in tests/redis/test_publisher.py and tests/redis/test_step_log.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from shared.job.advertised_slots import SlotUpdate
from shared.job.job_log import Delta, Prompt
from shared.job.replies import Fenced
from shared.job.result import INLINE_RESULT_BYTES, JobResult
from shared.job.states import JobEvent
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.interface import (
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnwritable,
)
from shared.store.redis.scripts.emit import Step, parse_emit
from shared.store.redis.store_errors import ScriptsMissing
from tests.unit.steps import SentOutput, SentResult, parse_step
from tests.unit.worker.buffers import FENCE_TOKEN, RESULT, make_buffer
from worker.core import publisher as module
from worker.core.output_buffer import OutputBuffer
from worker.core.publisher import Publisher

# An error inside the publisher's callbacks would leave a test waiting.
pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 30.0
FENCED = None
"""The reply to a call whose fencing token is not valid any more."""
Reply = dict[str, str] | Exception | None


HALF = INLINE_RESULT_BYTES // 4
"""Of what results may add up to in one call here: none of them is stored in pieces."""


def long_result(size: int) -> JobResult:
    return JobResult(JobEvent.COMPLETE, "", 200, "application/json", b"x" * size, 1, 2)


class Call(NamedTuple):
    """A recorded emit call."""

    shard: int
    fence_token: str
    step: Step
    again: bool
    update: SlotUpdate | None

    @property
    def outputs(self) -> dict[str, SentOutput]:
        """By job."""
        return parse_step(self.step).outputs


class RecordingQueue:
    """Records calls. Each waits until `open` is set and takes the next of `replies`, if any."""

    parse_emit = staticmethod(parse_emit)

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.replies: list[Reply] = []

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, update: SlotUpdate | None
    ) -> asyncio.Future[list[bytes] | None]:
        self.calls.put_nowait(Call(shard, fence_token, step, False, update))
        return asyncio.ensure_future(self._raw_reply(self.open))

    async def emit(
        self, shard: int, worker: str, fence_token: str, step: Step, *, repeated: bool
    ) -> dict[str, str]:
        self.calls.put_nowait(Call(shard, fence_token, step, repeated, None))
        reply = await self._reply(self.open)
        if reply is FENCED:
            raise Fenced
        return reply

    async def _reply(self, may_go: asyncio.Event) -> dict[str, str] | None:
        await may_go.wait()
        reply = self.replies.pop(0) if self.replies else {}
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _raw_reply(self, may_go: asyncio.Event) -> list[bytes] | None:
        """As the script gives it."""
        lost = await self._reply(may_go)
        return None if lost is FENCED else [word.encode() for item in lost.items() for word in item]

    async def next(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()


class StubLease:
    """One fencing token for all shards; each renewal brings a new one for `held` buffers."""

    worker_id = "w-1"

    def __init__(self) -> None:
        self.token = FENCE_TOKEN
        self.held: list[OutputBuffer] = []
        self.failures: list[Exception] = []
        self.renewals = 0

    def fence_token(self, shard: int) -> str:
        return self.token

    def invalidate(self, shard: int, fence_token: str) -> None:
        if self.token == fence_token:
            self.token = ""

    async def renew(self, shard: int) -> None:
        self.renewals += 1
        if self.failures:
            raise self.failures.pop(0)
        self.token = f"renewed-{self.renewals}"
        for buffer in self.held:
            buffer.fence_token = self.token


class StubSlots:
    """Has an update for every call, and records what became of it."""

    def __init__(self) -> None:
        self.acks: list[tuple[int, int | None]] = []
        self.rejections: list[SlotUpdate] = []
        self.updates = 0

    def pending_update(self, shard: int) -> SlotUpdate:
        self.updates += 1
        return SlotUpdate("p", "w", shard, 0)

    def acked(self, shard: int, assigned: int | None = 0) -> None:
        self.acks.append((shard, assigned))

    def rejected(self, shard: int, update: SlotUpdate) -> None:
        self.rejections.append(update)


class Bench:
    """A running publisher."""

    def __init__(self, shards: int) -> None:
        self.queue = RecordingQueue(shards)
        self.lease = StubLease()
        self.slots = StubSlots()
        self.registry = CollectorRegistry()
        queue: Any = self.queue
        lease: Any = self.lease
        slots: Any = self.slots
        self.publisher = Publisher(queue, WorkerMetrics(self.registry), lease, slots)
        self.task = asyncio.create_task(self.publisher.run())

    def buffer(self, job_id: str = "a", shard: int = 0, **fields: Any) -> OutputBuffer:
        buffer = make_buffer(job_id, shard, self.publisher.notify, **fields)
        self.lease.held.append(buffer)
        return buffer

    def finish(self, buffer: OutputBuffer, result: JobResult = RESULT) -> asyncio.Task[str]:
        return asyncio.create_task(self.publisher.finish(buffer, result))

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, shards: int) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "_RETRY_CAP_S", 0.001)
    monkeypatch.setattr(module, "_CALL_BYTES", 2 * HALF)
    bench = Bench(shards)
    yield bench
    bench.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StoreError, TypeError):
        await bench.task


async def turns(count: int = 5) -> None:
    """Let all tasks run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


# --- what leaves in one call ---


async def test_all_jobs_of_a_step_leave_in_one_call(bench: Bench) -> None:
    for n in range(50):
        buffer = bench.buffer(f"job-{n}")
        buffer.delta(0, 0, [7], "x")
        buffer.chunk(b"x")
    bench.publisher.on_step()
    outputs = (await bench.queue.next()).outputs
    assert len(outputs) == 50
    assert all((o.seq, o.chunks, o.end) == (1, b"x", None) for o in outputs.values())
    assert bench.queue.calls.empty()
    assert bench.counted("flotilla_flushes_total") == 1
    assert bench.counted("flotilla_engine_steps_total") == 1


async def test_output_of_tasks_that_the_step_wakes_leaves_with_the_step(bench: Bench) -> None:
    first, second = bench.buffer("a"), bench.buffer("b")
    first.chunk(b"1")
    bench.publisher.on_step()
    asyncio.get_running_loop().call_soon(second.chunk, b"2")
    assert set((await bench.queue.next()).outputs) == {"a", "b"}


async def test_while_a_call_is_in_flight_later_steps_accumulate(bench: Bench) -> None:
    buffer, other = bench.buffer("a"), bench.buffer("b")
    bench.queue.open.clear()
    buffer.chunk(b"1")
    bench.publisher.on_step()
    await bench.queue.next()
    for data in (b"2", b"3", b"4"):
        buffer.delta(0, 0, [int(data)], data.decode())
        buffer.chunk(data)
        bench.publisher.on_step()
        await turns()
    other.chunk(b"x")
    bench.publisher.on_step()
    await turns()
    assert bench.queue.calls.empty()
    bench.queue.open.set()
    outputs = (await bench.queue.next()).outputs
    assert (outputs["a"].seq, outputs["a"].chunks) == (2, b"234")
    assert outputs["a"].journal == [Delta(0, 0, (n,), str(n)) for n in (2, 3, 4)]
    assert outputs["b"].chunks == b"x"
    assert bench.queue.calls.empty()


async def test_a_prompt_alone_is_not_sent(bench: Bench) -> None:
    silent, other = bench.buffer("silent"), bench.buffer("other")
    silent.prompt(0, 12)
    other.prompt(0, 3)
    other.delta(0, 0, [1], "x")
    bench.publisher.on_step()
    outputs = (await bench.queue.next()).outputs
    assert set(outputs) == {"other"}
    assert outputs["other"].journal == [Prompt(0, 3), Delta(0, 0, (1,), "x")]


async def test_output_that_no_step_follows_is_sent_all_the_same(bench: Bench) -> None:
    bench.buffer("a").chunk(b"error")
    assert (await bench.queue.next()).outputs["a"].chunks == b"error"


async def test_a_step_without_output_makes_no_call(bench: Bench) -> None:
    for _ in range(5):
        bench.publisher.on_step()
        await turns()
    assert bench.queue.calls.empty()
    assert bench.counted("flotilla_engine_steps_total") == 5
    assert bench.counted("flotilla_flushes_total") == 0


@pytest.mark.parametrize("shards", [3])
async def test_each_shard_has_calls_of_its_own(bench: Bench) -> None:
    bench.queue.open.clear()
    for shard in range(3):
        bench.buffer(f"a{shard}", shard).chunk(b"1")
    outcomes = [bench.finish(bench.buffer(f"b{shard}", shard)) for shard in range(3)]
    calls = [await bench.queue.next() for _ in range(3)]
    assert sorted((call.shard, sorted(call.outputs)) for call in calls) == [
        (shard, [f"a{shard}", f"b{shard}"]) for shard in range(3)
    ]
    bench.queue.open.set()
    assert await asyncio.gather(*outcomes) == ["ok"] * 3


# --- results ---


async def test_a_result_leaves_with_the_last_output(bench: Bench) -> None:
    buffer, other = bench.buffer("a"), bench.buffer("b")
    buffer.chunk(b"1")
    other.chunk(b"x")
    bench.publisher.on_step()
    outcome = bench.finish(buffer)  # in the turn of the event loop in which the step ended
    outputs = (await bench.queue.next()).outputs
    last = outputs["a"]
    assert (last.seq, last.chunks, last.answer) == (1, b"1", RESULT)
    assert outputs["b"].end is None
    assert await outcome == "ok"
    assert bench.queue.calls.empty()


async def test_a_result_waits_for_the_call_in_flight(bench: Bench) -> None:
    buffer = bench.buffer()
    bench.queue.open.clear()
    buffer.chunk(b"1")
    bench.publisher.on_step()
    await bench.queue.next()
    outcome = bench.finish(buffer)
    await turns()
    assert bench.queue.calls.empty()
    bench.queue.open.set()
    output = (await bench.queue.next()).outputs["a"]
    assert output.entry is None
    assert output.end
    assert (output.end.seq, output.end.lease_id, output.answer) == (2, buffer.job.lease_id, RESULT)
    assert await outcome == "ok"


async def test_a_job_without_output_ends_with_entry_number_one(bench: Bench) -> None:
    buffer = bench.buffer()
    outcome = bench.finish(buffer)
    output = (await bench.queue.next()).outputs["a"]
    assert output == SentOutput(None, 0, SentResult(buffer.job.lease_id, 1, b"", "gw-1", RESULT))
    assert await outcome == "ok"


async def test_output_after_the_result_leaves_in_the_same_call(bench: Bench) -> None:
    buffer = bench.buffer()
    outcome = bench.finish(buffer)
    await turns(1)
    buffer.chunk(b"1")
    last = (await bench.queue.next()).outputs["a"]
    assert (last.seq, last.chunks, last.answer) == (1, b"1", RESULT)
    assert await outcome == "ok"


async def test_results_of_the_same_turn_leave_together(bench: Bench) -> None:
    outcomes = [bench.finish(bench.buffer(name)) for name in "abc"]
    outputs = (await bench.queue.next()).outputs
    assert {name: output.answer for name, output in outputs.items()} == dict.fromkeys("abc", RESULT)
    assert await asyncio.gather(*outcomes) == ["ok"] * 3
    assert bench.queue.calls.empty()


async def test_the_outcome_is_the_state_that_redis_reports(bench: Bench) -> None:
    bench.queue.replies = [{"b": "cancelled", "c": "gone"}]
    outcomes = [bench.finish(bench.buffer(name)) for name in "abc"]
    assert await asyncio.gather(*outcomes) == ["ok", "cancelled", "gone"]


async def test_an_outcome_that_nobody_awaits_does_no_harm(bench: Bench) -> None:
    bench.queue.open.clear()
    left, stays = bench.finish(bench.buffer("a")), bench.finish(bench.buffer("b"))
    await bench.queue.next()
    left.cancel()
    bench.queue.open.set()
    assert await stays == "ok"
    assert not bench.task.done()


# --- long results ---


async def test_long_results_are_spread_over_calls_in_order(bench: Bench) -> None:
    sizes = [HALF, HALF, 1, HALF, HALF, 0, 3 * HALF, 0]
    outcomes = [bench.finish(bench.buffer(str(i)), long_result(n)) for i, n in enumerate(sizes)]
    calls = [list((await bench.queue.next()).outputs) for _ in range(5)]
    assert calls == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], ["7"]]
    assert await asyncio.gather(*outcomes) == ["ok"] * len(sizes)
    assert bench.queue.calls.empty()
    assert bench.counted("flotilla_flushes_total") == len(calls)


async def test_a_result_whose_call_is_done_does_not_wait_for_the_next_call(bench: Bench) -> None:
    only_first, rest = bench.queue.open, asyncio.Event()
    only_first.clear()
    first, second = (bench.finish(bench.buffer(name), long_result(2 * HALF)) for name in "ab")
    await bench.queue.next()
    bench.queue.open = rest
    only_first.set()
    assert await first == "ok"
    await bench.queue.next()
    assert not second.done()
    rest.set()
    assert await second == "ok"


async def test_output_during_an_earlier_call_keeps_its_order(bench: Bench) -> None:
    bench.queue.open.clear()
    long, after, late = bench.buffer("long"), bench.buffer("after"), bench.buffer("late")
    outcomes = [bench.finish(buffer, long_result(2 * HALF)) for buffer in (long, after)]
    await turns(3)
    late.chunk(b"1")
    bench.publisher.on_step()
    assert list((await bench.queue.next()).outputs) == ["long"]
    late.chunk(b"2")
    outcomes.append(bench.finish(late))
    await turns()
    bench.queue.open.set()
    last = (await bench.queue.next()).outputs
    assert list(last) == ["late", "after"]
    assert await asyncio.gather(*outcomes) == ["ok"] * 3
    assert (last["late"].chunks, last["late"].answer) == (b"12", RESULT)


async def test_a_result_of_a_job_that_is_discarded_meanwhile_is_not_sent(bench: Bench) -> None:
    bench.queue.open.clear()
    buffers = [bench.buffer(name) for name in "abc"]
    outcomes = [bench.finish(buffer, long_result(2 * HALF)) for buffer in buffers]
    assert list((await bench.queue.next()).outputs) == ["a"]
    buffers[2].discarded = True
    bench.queue.open.set()
    assert list((await bench.queue.next()).outputs) == ["b"]
    assert await asyncio.gather(*outcomes) == ["ok", "ok", "discarded"]
    assert bench.queue.calls.empty()
    assert bench.slots.updates == len(bench.slots.acks) == 2, "no update without a call"


# --- failures ---

TRANSIENT = [
    StoreUnavailable("away"),
    StoreTimeout("away"),
    StoreUnwritable("OOM command not allowed"),
    ScriptsMissing("NOSCRIPT"),
]


async def test_a_failed_call_is_repeated_unchanged(bench: Bench) -> None:
    buffer = bench.buffer()
    bench.queue.replies = list(TRANSIENT)
    buffer.chunk(b"1")
    bench.publisher.on_step()
    first = await bench.queue.next()
    buffer.chunk(b"2")
    for _ in TRANSIENT:
        repeated = await bench.queue.next()
        assert (repeated.step, repeated.again) == (first.step, True)
    second = await bench.queue.next()
    assert (first.again, second.again) == (False, False)
    assert second.outputs["a"].seq == 2


async def test_a_failed_result_is_repeated_unchanged(bench: Bench) -> None:
    bench.queue.replies = list(TRANSIENT)
    buffer = bench.buffer()
    buffer.chunk(b"last")
    assert await bench.finish(buffer) == "ok"
    calls = [await bench.queue.next() for _ in range(len(TRANSIENT) + 1)]
    assert all(call.step == calls[0].step for call in calls)
    assert [call.again for call in calls] == [False] + [True] * len(TRANSIENT)
    assert bench.queue.calls.empty()


async def test_a_permanent_error_ends_the_publisher(bench: Bench) -> None:
    bench.queue.replies = [StoreRefused("WRONGTYPE")]
    bench.buffer().chunk(b"1")
    with pytest.raises(StoreRefused):
        await bench.task


async def test_output_that_can_not_be_packed_ends_the_publisher(bench: Bench) -> None:
    no_bytes: Any = object()
    bench.buffer().chunk(no_bytes)
    bench.publisher.on_step()
    with pytest.raises(TypeError):
        await bench.task


@pytest.mark.parametrize("retrying", [False, True])
async def test_a_stopped_publisher_sends_nothing(bench: Bench, retrying: bool) -> None:
    buffer = bench.buffer()
    if retrying:
        bench.queue.replies = [StoreUnavailable("away")] * 3
    buffer.chunk(b"1")
    bench.publisher.on_step()
    await bench.queue.next()
    bench.task.cancel()
    await asyncio.gather(bench.task, return_exceptions=True)
    made = bench.queue.calls.qsize()
    buffer.chunk(b"2")
    bench.publisher.on_step()
    await turns(20)
    assert bench.queue.calls.qsize() == made


async def test_a_discarded_job_sends_nothing(bench: Bench) -> None:
    discarded, other = bench.buffer("discarded"), bench.buffer("other")
    discarded.chunk(b"1")
    other.chunk(b"1")
    discarded.discarded = True
    bench.publisher.on_step()
    assert set((await bench.queue.next()).outputs) == {"other"}
    discarded.chunk(b"2")
    assert await bench.publisher.finish(discarded, RESULT) == "discarded"
    assert bench.queue.calls.empty()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_call_is_repeated_without_jobs_that_were_discarded(
    bench: Bench, ends: bool
) -> None:
    buffer, other = bench.buffer("a"), bench.buffer("b")
    bench.queue.open.clear()
    bench.queue.replies = [StoreUnavailable("away")]
    buffer.chunk(b"1")
    outcome = bench.finish(buffer) if ends else None
    await bench.queue.next()
    buffer.discarded = True
    other.chunk(b"x")
    bench.queue.open.set()
    assert set((await bench.queue.next()).outputs) == {"b"}
    if outcome:
        assert await outcome == "discarded"


# --- the fencing token ---


async def test_a_refused_call_is_repeated_under_a_new_token(bench: Bench) -> None:
    buffer = bench.buffer()
    bench.queue.replies = [FENCED]
    buffer.chunk(b"1")
    refused, accepted = [await bench.queue.next() for _ in range(2)]
    assert (refused.fence_token, accepted.fence_token) == (FENCE_TOKEN, "renewed-1")
    assert refused.step == accepted.step
    assert not accepted.again, "nothing of the refused call has happened"
    assert bench.lease.renewals == 1


async def test_a_repeated_call_that_is_refused_still_counts_as_repeated(bench: Bench) -> None:
    """The first call may have been carried out before the token became invalid."""
    bench.queue.replies = [StoreUnavailable("no reply"), FENCED]
    bench.buffer().chunk(b"1")
    calls = [await bench.queue.next() for _ in range(3)]
    assert [call.again for call in calls] == [False, True, True]


async def test_a_call_is_refused_any_number_of_times(bench: Bench) -> None:
    bench.queue.replies = [FENCED] * 6
    assert await bench.finish(bench.buffer()) == "ok"
    calls = [bench.queue.calls.get_nowait() for _ in range(bench.queue.calls.qsize())]
    assert [call.again for call in calls] == [False] * 7
    assert len({call.fence_token for call in calls}) == 7


@pytest.mark.parametrize("token", ["", "another"])
async def test_a_job_of_another_token_makes_it_renew_before_the_call(
    bench: Bench, token: str
) -> None:
    bench.lease.token = token
    buffer = bench.buffer()
    buffer.chunk(b"1")
    call = await bench.queue.next()
    assert bench.lease.renewals == 1
    assert call.fence_token == buffer.fence_token == "renewed-1"
    assert (call.again, call.outputs["a"].seq) == (False, 1)


async def test_a_renewal_that_fails_is_repeated(bench: Bench) -> None:
    bench.queue.replies = [FENCED]
    bench.lease.failures = list(TRANSIENT)
    assert await bench.finish(bench.buffer()) == "ok"
    assert bench.lease.renewals == len(TRANSIENT) + 1


@pytest.mark.parametrize("ends", [False, True])
async def test_a_job_that_is_not_renewed_is_discarded(bench: Bench, ends: bool) -> None:
    gone, stays = bench.buffer("gone"), bench.buffer("stays")
    bench.lease.held.remove(gone)
    bench.queue.replies = [FENCED]
    gone.chunk(b"1")
    stays.chunk(b"1")
    outcome = bench.finish(gone) if ends else None
    assert set((await bench.queue.next()).outputs) == {"gone", "stays"}
    assert set((await bench.queue.next()).outputs) == {"stays"}
    if outcome:
        assert await outcome == "discarded"
    assert (gone.discarded, stays.discarded) == (True, False)


# --- updates of the advertised slots ---


@pytest.mark.parametrize("shards", [2])
async def test_an_update_of_the_slots_leaves_with_the_output_of_its_shard(bench: Bench) -> None:
    bench.buffer("a", 0).chunk(b"x")
    bench.buffer("b", 1).chunk(b"x")
    bench.publisher.on_step()
    calls = [await bench.queue.next() for _ in range(2)]
    assert sorted((call.shard, call.update) for call in calls) == [
        (0, SlotUpdate("p", "w", 0, 0)),
        (1, SlotUpdate("p", "w", 1, 0)),
    ]
    await turns()
    assert sorted(bench.slots.acks) == [(0, 0), (1, 0)]


async def test_an_update_whose_reply_is_lost_is_not_repeated(bench: Bench) -> None:
    bench.queue.replies = [StoreUnavailable("no reply")]
    bench.buffer().chunk(b"x")
    bench.publisher.on_step()
    calls = [await bench.queue.next() for _ in range(2)]
    assert [call.update for call in calls] == [SlotUpdate("p", "w", 0, 0), None]
    assert bench.slots.acks == [(0, None)]


async def test_an_update_in_a_refused_call_is_rejected(bench: Bench) -> None:
    bench.queue.replies = [FENCED]
    bench.buffer().chunk(b"x")
    bench.publisher.on_step()
    refused, repeated = [await bench.queue.next() for _ in range(2)]
    assert repeated.update is None
    assert (bench.slots.acks, bench.slots.rejections) == ([], [refused.update])
