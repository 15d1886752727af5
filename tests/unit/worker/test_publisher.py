"""The publisher: one call per step and shard, in order, repeated until Redis takes it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import RedisConnectionError, ResponseError
from shared.platform.redis_link import ScriptsMissing
from shared.protocol.advertised_slots import SlotUpdate
from shared.protocol.chunk_template import DeltaDecoder
from shared.protocol.frames import decode, entry_of
from shared.protocol.job import LeasedJob
from shared.protocol.job_log import Delta, Prompt, parse_segments
from shared.protocol.result import JobResult
from shared.protocol.scripts.emit import Fenced, Step, make_step
from shared.protocol.scripts.renew import Renewal
from shared.protocol.states import JobEvent
from shared.protocol.step_log import FLUSH_AFTER, STEPS
from tests.unit.calls import Ended, Parts, Said, take_apart
from worker.claim.lease import Lease
from worker.publish import publisher as module
from worker.publish.output_buffer import OutputBuffer
from worker.publish.publisher import Publisher

# What goes wrong within the publisher's callbacks ends nothing.
pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 30.0
WORKER = "w-1"
DONE = JobResult(JobEvent.COMPLETE, "", 200, "text/event-stream", b"", 1, 2)


def long_answer(size: int) -> JobResult:
    return JobResult(JobEvent.COMPLETE, "", 200, "application/json", b"x" * size, 1, 2)


@dataclass(frozen=True)
class Call:
    """A step that Redis was told."""

    shard: int
    fence_token: str
    step: Step
    again: bool
    offer: SlotUpdate | None

    @property
    def parts(self) -> Parts:
        return take_apart(self.step)

    @property
    def log_flushes(self) -> dict[str, list[int]]:
        return self.parts.log_flushes

    @property
    def ears(self) -> dict[str, list[str]]:
        """Which jobs the gateways hear of."""
        return {
            gateway: [frame[0].decode() for frame in decode(message or self.step.frames)]
            for gateway, message in self.step.messages
        }


class Queue:
    """Takes calls as lua/emit.lua does; each waits until `open` is set and may fail first."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.n_losses = 0
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.lands = False
        """A call that fails is carried out all the same: its reply is lost."""
        self.renewals: list[tuple[int, str, list[str]]] = []
        self.renewal_failures: list[Exception] = []
        self.fences = ["e-0"] * shards
        self.breaks = 0
        """So often the connection is lost while a renewal is on its way back."""
        self.changes = 0
        """So often something changes just before a call."""
        self.states: dict[str, str] = {}
        """Of jobs that are not the worker's own any more."""
        self.listeners: dict[str, tuple[str, bool]] = {}
        self.lost: dict[str, str] = {}
        """The ends that come too late."""
        self.logs: dict[str, list[int]] = {}
        self.steps: list[list[tuple[Step, Parts]]] = [[] for _ in range(shards)]
        self.ended: set[str] = set()
        self.entries: dict[str, int] = {}
        """How many entries a job has said."""

    def losses(self, shard: int) -> int:
        return self.n_losses

    def invalidate_fence(self, shard: int = 0) -> None:
        """Something has changed, as after a watch."""
        self.fences[shard] = ""

    def take_away(self, name: str, state: str, shard: int = 0) -> None:
        self.states[name] = state
        self.invalidate_fence(shard)

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, offer: SlotUpdate | None
    ) -> asyncio.Future[list[bytes] | None]:
        assert worker == WORKER
        call = self._call(shard, fence_token, step, False, offer)
        return asyncio.ensure_future(_flat(call))

    async def emit(
        self, shard: int, worker: str, fence_token: str, step: Step, *, repeated: bool = False
    ) -> dict[str, str]:
        assert worker == WORKER
        lost = await self._call(shard, fence_token, step, repeated, None)
        if lost is None:
            raise Fenced
        return lost

    def _call(self, *words: Any) -> Coroutine[Any, Any, dict[str, str] | None]:
        """The call is under way when this returns."""
        call = Call(*words)
        self.calls.put_nowait(call)
        return self._reply(call, self.open)

    async def _reply(self, call: Call, may_go: asyncio.Event) -> dict[str, str] | None:
        await may_go.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure and not self.lands:
            raise failure
        if self.changes:
            self.changes -= 1
            self.invalidate_fence(call.shard)
        if call.fence_token != self.fences[call.shard]:
            if failure:
                raise failure
            return None
        lost = self._take(call)
        if failure:
            raise failure
        return lost

    def _take(self, call: Call) -> dict[str, str]:
        parts, steps = call.parts, self.steps[call.shard]
        if call.step.frame_sizes and not (call.again and steps and _same(steps[-1][0], call.step)):
            steps.append((call.step, parts))
            del steps[:-STEPS]
        for name, numbers in parts.log_flushes.items():
            assert name not in self.states, "put into the log of a job of somebody else"
            self._put(name, numbers, again=call.again)
        lost = {}
        for name, said in parts.said.items():
            if name in self.ended:
                assert call.again, "said after the end"
                continue
            assert name not in self.states, "said of a job of somebody else"
            if said.entry is not None:
                self.entries[name] = said.entry.seq
            if name in self.lost and said.end:
                lost[name] = self.lost[name]
            elif said.end:
                self._put(name, [entry.seq for entry in said.end.before], again=call.again)
                assert len(self.logs[name]) == said.end.seq - 1, "entries are missing"
                self.entries[name] = said.end.seq - 1
                self.ended.add(name)
        return lost

    def _put(self, name: str, numbers: Sequence[int], *, again: bool) -> None:
        """An end or a log flush must go on where the log stops, unless it is told again."""
        log = self.logs.setdefault(name, [])
        if again and numbers and numbers[0] <= len(log):
            numbers = []
        log += numbers
        assert log == list(range(1, len(log) + 1)), f"{name} has {log}"

    def readable(self, name: str) -> list[int]:
        """The numbers of the entries that can be read: from the log, then from the step log."""
        found = list(self.logs.get(name, []))
        for steps in self.steps:
            for _, parts in steps:
                said = parts.said.get(name)
                if said and said.entry and said.seq == len(found) + 1:
                    found.append(said.seq)
        return found

    async def renew(
        self, shard: int, worker: str, fence_token: str, lease_s: float, jobs: Sequence[LeasedJob]
    ) -> Renewal:
        assert worker == WORKER
        names = [job.id for job in jobs]
        self.renewals.append((shard, fence_token, names))
        await asyncio.sleep(0)
        if self.renewal_failures:
            raise self.renewal_failures.pop(0)
        if self.breaks:
            self.breaks -= 1
            self.n_losses += 1
        if fence_token != self.fences[shard] or not fence_token:
            self.fences[shard] = f"e-{len(self.renewals)}"
        lost = {name: self.states[name] for name in names if name in self.states}
        listeners = {
            name: self.listeners.get(name, ("gw-1", False)) for name in names if name not in lost
        }
        return Renewal(self.fences[shard], lost, listeners)

    async def lose_the_reply(self) -> Call:
        """The next call is carried out, and fails; returns it when it has been made again."""
        self.open.clear()
        await self.next()
        self.failures, self.lands = [RedisConnectionError("no answer")], True
        first, self.open = self.open, asyncio.Event()
        first.set()
        repeated = await self.next()
        assert repeated.again
        return repeated

    async def next(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()

    async def next_step(self) -> dict[str, Said]:
        """What is said in the next call, by job."""
        return (await self.next()).parts.said


async def _flat(call: Coroutine[Any, Any, dict[str, str] | None]) -> list[bytes] | None:
    """The reply as the script gives it."""
    lost = await call
    return None if lost is None else [word.encode() for item in lost.items() for word in item]


def _same(one: Step, other: Step) -> bool:
    return (one.frame_sizes, one.frames) == (other.frame_sizes, other.frames)


class Offering:
    """Has something to tell each time: what was heard of it, and what was `refused`."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int | None]] = []
        self.refused: list[tuple[int, SlotUpdate]] = []
        self.asked = 0

    def pending_update(self, shard: int) -> SlotUpdate:
        self.asked += 1
        return SlotUpdate("p", "w", shard, 0)

    def acked(self, shard: int, taken: int | None = 0) -> None:
        self.heard.append((shard, taken))

    def rejected(self, shard: int, offer: SlotUpdate) -> None:
        self.refused.append((shard, offer))


class Desk:
    """A running publisher, its queue, its lease, and who was lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
        monkeypatch.setattr(module, "_RETRY_CAP_S", 0.001)
        self.queue = Queue(shards)
        self.lost: list[tuple[str, str]] = []
        self.runs: dict[str, Any] = {}
        self.final_state: dict[str, str] = {}
        self.advertised_slots = Offering()
        self.registry = CollectorRegistry()
        queue: Any = self.queue
        offers: Any = self.advertised_slots
        self.lease = Lease(
            queue,
            WORKER,
            9.0,
            lambda: [run.buffer for run in self.runs.values()],
            self._on_lost,
        )
        self.lease._fence_tokens = list(self.queue.fences)
        self.publisher = Publisher(queue, WorkerMetrics(self.registry), self.lease, offers)
        self.task = asyncio.create_task(self.publisher.run())

    def _on_lost(self, job: LeasedJob, state: str) -> None:
        """As Executor.lose."""
        buffer = self.runs[job.id].buffer
        if not buffer.discarded and self.final_state.get(job.id) != state:
            self.lost.append((job.id, state))
            buffer.discarded = True

    def buffer(self, name: str = "a", shard: int = 0, **changes: Any) -> OutputBuffer:
        """Of a job that was leased in the fencing token that the worker is in.

        Its log has begun already, unless `logged` is false.
        """
        logged = changes.pop("logged", True)
        fields: dict[str, Any] = {
            "id": name,
            "shard": shard,
            "lease_id": "n" * 16,
            "generation": 1,
            "fence_token": self.lease.fence_tokens[shard],
            "attempt": 1,
            "stream": True,
            "endpoint": "/e",
            "body": b"{}",
            "watchers": "gw-1",
            "watched": False,
            "waited_s": 0.0,
        }
        job = LeasedJob(**(fields | changes))
        buffer = OutputBuffer(job, self.publisher.notify)
        buffer.log_started = logged
        self.runs[name] = SimpleNamespace(job=job, buffer=buffer)
        return buffer

    def finish(self, buffer: OutputBuffer, answer: JobResult = DONE) -> asyncio.Task[str]:
        return asyncio.create_task(self.publisher.finish(buffer, answer))

    def step(self) -> None:
        self.publisher.on_step()

    async def say(self, *buffers: OutputBuffer) -> Call:
        """A step in which these jobs speak; its call, once it is answered."""
        for buffer in buffers:
            buffer.chunk(b"x")
        self.step()
        call = await self.queue.next()
        await turns()
        return call

    async def pass_by(self, steps: int) -> list[Call]:
        """Steps in which others speak, a new one each time."""
        return [await self.say(self.buffer(f"other-{len(self.runs)}")) for _ in range(steps)]

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch, shards: int) -> AsyncIterator[Desk]:
    desk = Desk(monkeypatch, shards)
    yield desk
    desk.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ResponseError, TypeError):
        await desk.task


async def turns(count: int = 5) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_jobs_of_a_step_leave_in_one_call(desk: Desk) -> None:
    buffers = [desk.buffer(f"job-{i}") for i in range(50)]
    for buffer in buffers:
        buffer.delta(0, 0, [7], "x")
        buffer.chunk(b"x")
    desk.step()
    step = await desk.queue.next_step()
    assert len(step) == 50
    assert all((e.seq, e.chunks, e.end) == (1, b"x", None) for e in step.values())
    assert desk.queue.calls.empty()
    assert (
        desk.counted("flotilla_flushes_total") == desk.counted("flotilla_engine_steps_total") == 1
    )


async def test_what_runs_say_in_the_same_turn_as_the_step_leaves_with_it(desk: Desk) -> None:
    first, second = desk.buffer("a"), desk.buffer("b")
    first.chunk(b"1")
    desk.step()
    asyncio.get_running_loop().call_soon(second.chunk, b"2")  # woken by the step, speaks next
    assert set(await desk.queue.next_step()) == {"a", "b"}


async def test_while_a_call_is_on_its_way_later_steps_pile_up(desk: Desk) -> None:
    buffer, other = desk.buffer("a"), desk.buffer("b")
    desk.queue.open.clear()
    buffer.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    for data in (b"2", b"3", b"4"):
        buffer.delta(0, 0, [int(data)], data.decode())
        buffer.chunk(data)
        desk.step()
        await turns()
    other.chunk(b"x")
    desk.step()
    await turns()
    assert desk.queue.calls.empty()
    desk.queue.open.set()
    step = await desk.queue.next_step()
    assert (step["a"].seq, step["a"].chunks) == (2, b"234")
    assert step["a"].journal == [Delta(0, 0, (n,), str(n)) for n in (2, 3, 4)]
    assert step["b"].chunks == b"x"
    assert desk.queue.calls.empty()


async def test_a_prompt_alone_sends_nothing_and_leaves_with_the_first_delta(desk: Desk) -> None:
    silent, speaks = desk.buffer("silent"), desk.buffer("speaks")
    silent.prompt(0, 12)
    speaks.prompt(0, 3)
    speaks.delta(0, 0, [1], "x")
    desk.step()
    step = await desk.queue.next_step()
    assert set(step) == {"speaks"}
    assert step["speaks"].journal == [Prompt(0, 3), Delta(0, 0, (1,), "x")]
    assert step["speaks"].chunks == b""
    assert silent.reached_engine
    assert silent.prompt_tokens == 12


async def test_an_buffer_counts_the_tokens(desk: Desk) -> None:
    buffer = desk.buffer()
    assert (buffer.prompt_tokens, buffer.completion_tokens) == (0, 0)
    buffer.prompt(0, 3)
    buffer.prompt(1, 4)
    buffer.delta(0, 0, [1, 2], "ab")
    buffer.delta(1, 1, [3], "c")
    buffer.take()
    buffer.delta(1, 0, [], "")
    assert (buffer.prompt_tokens, buffer.completion_tokens) == (7, 3)


async def test_a_token_of_a_stream_is_hardly_more_than_its_text(desk: Desk) -> None:
    buffer, decoder = desk.buffer(), DeltaDecoder()
    sizes = []
    for n, text in enumerate("abcdef"):
        chunk = b'data: {"id": "chatcmpl-%s", "text": "%c", "more": null}' % (b"0" * 99, ord(text))
        buffer.delta(0, 0, [n], text)
        buffer.chunk(chunk)
        desk.step()
        said = (await desk.queue.next_step())["a"]
        assert said.entry
        assert decoder.decode(said.entry.items) == chunk
        assert said.journal == [Delta(0, 0, (n,), text)]
        sizes.append(len(entry_of(buffer.unflushed[-1], "a", n + 1)))
    assert sizes[0] > 100
    assert sizes[2:] == [len("[") + len("'x") + len("n")] * 4


async def test_output_that_no_step_follows_leaves_all_the_same(desk: Desk) -> None:
    desk.buffer("a").chunk(b"error")
    assert (await desk.queue.next_step())["a"].chunks == b"error"


async def test_an_buffer_counts_its_entries(desk: Desk) -> None:
    buffer = desk.buffer()
    assert buffer.take() is None
    for seq in (1, 2, 3):
        buffer.chunk(b"x")
        taken = buffer.take()
        assert taken is not None
        said = take_apart(make_step([taken])).said["a"]
        assert (said.seq, said.chunks, said.journal, said.end) == (seq, b"x", [], None)
        assert buffer.take() is None


async def test_the_end_leaves_with_the_last_output_in_one_call(desk: Desk) -> None:
    buffer = desk.buffer()
    buffer.chunk(b"1")
    desk.step()
    first = (await desk.queue.next_step())["a"]
    assert (first.seq, first.end) == (1, None)
    buffer.delta(0, 0, [7], "2")
    buffer.chunk(b"2")
    verdict = desk.finish(buffer)
    last = (await desk.queue.next_step())["a"]
    assert (last.seq, last.chunks, last.answer) == (2, b"2", DONE)
    assert last.journal == [Delta(0, 0, (7,), "2")]
    assert await verdict == "ok"
    assert desk.queue.calls.empty()


async def test_output_and_end_leave_together_though_the_step_has_ended(desk: Desk) -> None:
    buffer, other = desk.buffer("a"), desk.buffer("b")
    buffer.chunk(b"1")
    other.chunk(b"x")
    desk.step()
    verdict = desk.finish(buffer)  # the run goes on in the turn in which it has spoken
    step = await desk.queue.next_step()
    assert (step["a"].seq, step["a"].chunks, step["a"].answer) == (1, b"1", DONE)
    assert step["b"].end is None
    assert await verdict == "ok"
    assert desk.queue.calls.empty()


async def test_the_end_waits_for_the_call_that_is_on_its_way(desk: Desk) -> None:
    buffer = desk.buffer()
    desk.queue.open.clear()
    buffer.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    verdict = desk.finish(buffer)
    await turns()
    assert desk.queue.calls.empty()
    desk.queue.open.set()
    end = (await desk.queue.next_step())["a"]
    assert end.entry is None
    assert end.end
    assert (end.end.seq, end.end.lease_id, end.answer) == (2, buffer.job.lease_id, DONE)
    assert await verdict == "ok"


async def test_a_job_that_said_nothing_ends_with_its_first_entry(desk: Desk) -> None:
    buffer = desk.buffer()
    verdict = desk.finish(buffer)
    end = (await desk.queue.next_step())["a"]
    assert end == Said(None, 0, Ended(buffer.job.lease_id, 1, b"", "gw-1", DONE))
    assert await verdict == "ok"


async def test_an_end_is_not_forgotten_when_its_job_speaks_once_more(desk: Desk) -> None:
    buffer = desk.buffer()
    verdict = desk.finish(buffer)
    await turns(1)
    buffer.chunk(b"1")
    last = (await desk.queue.next_step())["a"]
    assert (last.seq, last.chunks, last.answer) == (1, b"1", DONE)
    assert await verdict == "ok"


async def test_a_prompt_that_no_token_followed_is_told_with_the_end(desk: Desk) -> None:
    buffer = desk.buffer()
    buffer.prompt(0, 5)
    verdict = desk.finish(buffer)
    end = (await desk.queue.next_step())["a"]
    assert (end.seq, end.chunks, end.journal, end.answer) == (1, b"", [Prompt(0, 5)], DONE)
    assert await verdict == "ok"


async def test_ends_do_not_wait_for_each_other(desk: Desk) -> None:
    desk.queue.open.clear()
    verdicts = [desk.finish(desk.buffer(name)) for name in "abc"]
    step = await desk.queue.next_step()
    assert {name: e.answer for name, e in step.items()} == {"a": DONE, "b": DONE, "c": DONE}
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok"] * 3
    assert desk.queue.calls.empty()


async def test_the_verdict_is_what_redis_says(desk: Desk) -> None:
    desk.queue.lost = {"b": "cancelled", "c": "gone"}
    verdicts = [desk.finish(desk.buffer(name)) for name in "abc"]
    assert await asyncio.gather(*verdicts) == ["ok", "cancelled", "gone"]
    assert desk.lost == []  # who waits for a verdict need not be told


async def test_a_verdict_that_nobody_waits_for_any_more_harms_nobody(desk: Desk) -> None:
    desk.queue.open.clear()
    left, stays = desk.finish(desk.buffer("a")), desk.finish(desk.buffer("b"))
    await desk.queue.next_step()
    left.cancel()
    desk.queue.open.set()
    assert await stays == "ok"
    assert not desk.task.done()


# --- long answers ---

HALF = module._CALL_BYTES // 2


async def test_long_answers_are_spread_over_calls_in_their_order(desk: Desk) -> None:
    sizes = [HALF, HALF, 1, HALF, HALF, 0, 3 * HALF, 0]
    verdicts = [desk.finish(desk.buffer(str(i)), long_answer(n)) for i, n in enumerate(sizes)]
    calls = [await desk.queue.next_step() for _ in range(5)]
    assert [list(call) for call in calls] == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], ["7"]]
    assert await asyncio.gather(*verdicts) == ["ok"] * len(sizes)
    assert desk.queue.calls.empty()
    assert desk.counted("flotilla_flushes_total") == len(calls)


async def test_each_of_several_calls_is_repeated_by_itself(desk: Desk) -> None:
    verdicts = [desk.finish(desk.buffer(name), long_answer(2 * HALF)) for name in "ab"]
    desk.queue.failures = [RedisConnectionError("away")]
    assert [list(await desk.queue.next_step()) for _ in range(3)] == [["a"], ["a"], ["b"]]
    assert await asyncio.gather(*verdicts) == ["ok", "ok"]


async def test_an_answer_whose_call_is_done_does_not_wait_for_the_next_one(desk: Desk) -> None:
    only_first, rest = desk.queue.open, asyncio.Event()
    only_first.clear()
    first, second = (desk.finish(desk.buffer(name), long_answer(2 * HALF)) for name in "ab")
    await desk.queue.next_step()
    desk.queue.open = rest
    only_first.set()
    assert await first == "ok"
    await desk.queue.next_step()
    assert not second.done()
    rest.set()
    assert await second == "ok"


async def test_what_is_said_while_an_earlier_part_is_on_its_way_keeps_its_order(
    desk: Desk,
) -> None:
    desk.queue.open.clear()
    long, after, late = desk.buffer("long"), desk.buffer("after"), desk.buffer("late")
    verdict = desk.finish(long, long_answer(2 * HALF))
    other = desk.finish(after, long_answer(2 * HALF))
    await turns(3)
    late.chunk(b"1")
    desk.step()
    assert list(await desk.queue.next_step()) == ["long"]
    late.chunk(b"2")
    end = desk.finish(late)
    await turns()
    desk.queue.open.set()
    last = await desk.queue.next_step()
    assert list(last) == ["late", "after"]
    assert [await each for each in (verdict, other, end)] == ["ok"] * 3
    assert (last["late"].chunks, last["late"].answer) == (b"12", DONE)
    assert last["late"].end
    assert last["late"].end.seq == 2


async def test_an_answer_of_a_job_that_is_dropped_meanwhile_is_not_sent(desk: Desk) -> None:
    desk.queue.open.clear()
    buffers = [desk.buffer(name) for name in "abc"]
    verdicts = [desk.finish(buffer, long_answer(2 * HALF)) for buffer in buffers]
    assert list(await desk.queue.next_step()) == ["a"]
    buffers[2].discarded = True
    desk.queue.open.set()
    assert list(await desk.queue.next_step()) == ["b"]
    assert await asyncio.gather(*verdicts) == ["ok", "ok", "discarded"]
    assert desk.queue.calls.empty()


# --- what goes wrong ---

FAILURES = [
    RedisConnectionError("away"),
    OSError("away"),
    ResponseError("OOM command not allowed"),
    ResponseError("MISCONF disk is full"),
    ResponseError("READONLY You can't write against a read only replica."),
    ResponseError("LOADING Redis is loading the dataset in memory"),
    ScriptsMissing("NOSCRIPT"),
]


async def test_a_failed_call_is_repeated_as_it_was(desk: Desk) -> None:
    buffer = desk.buffer()
    desk.queue.failures = list(FAILURES)
    buffer.chunk(b"1")
    desk.step()
    first = await desk.queue.next()
    buffer.chunk(b"2")
    for _ in FAILURES:
        repeated = await desk.queue.next()
        assert (repeated.step, repeated.again) == (first.step, True)
    second = await desk.queue.next()
    assert (first.again, second.again) == (False, False)
    assert second.parts.said["a"].seq == 2


async def test_a_failed_end_is_repeated_as_it_was(desk: Desk) -> None:
    desk.queue.failures = list(FAILURES)
    buffer = desk.buffer()
    buffer.chunk(b"last")
    assert await desk.finish(buffer) == "ok"
    calls = [await desk.queue.next() for _ in range(len(FAILURES) + 1)]
    assert all(call.step == calls[0].step for call in calls)
    assert [call.again for call in calls] == [False] + [True] * len(FAILURES)
    assert desk.queue.calls.empty()


async def test_what_will_never_be_taken_ends_the_publisher(desk: Desk) -> None:
    desk.queue.failures = [ResponseError("WRONGTYPE")]
    desk.buffer().chunk(b"1")
    with pytest.raises(ResponseError):
        await desk.task


@pytest.mark.parametrize("insists", [False, True])
async def test_who_has_ended_sends_nothing_any_more(desk: Desk, insists: bool) -> None:
    buffer = desk.buffer()
    if insists:
        desk.queue.open.clear()
        desk.queue.failures = [RedisConnectionError("away")] * 3
    await desk.say(buffer)
    desk.queue.open.set()
    desk.task.cancel()
    await asyncio.gather(desk.task, return_exceptions=True)
    made = desk.queue.calls.qsize()
    buffer.chunk(b"2")
    desk.step()
    await turns(20)
    assert desk.queue.calls.qsize() == made


async def test_a_dropped_job_sends_nothing_more(desk: Desk) -> None:
    dropped, kept = desk.buffer("discarded"), desk.buffer("kept")
    dropped.chunk(b"1")
    kept.chunk(b"1")
    dropped.discarded = True
    desk.step()
    assert set(await desk.queue.next_step()) == {"kept"}
    dropped.chunk(b"2")
    assert await desk.publisher.finish(dropped, DONE) == "discarded"
    assert desk.queue.calls.empty()


@pytest.mark.parametrize("ending", [False, True])
async def test_a_call_is_not_repeated_for_jobs_that_are_dropped(desk: Desk, ending: bool) -> None:
    buffer, other = desk.buffer("a"), desk.buffer("b")
    desk.queue.open.clear()
    desk.queue.failures = [RedisConnectionError("away")]
    if ending:
        verdict = desk.finish(buffer)
    else:
        buffer.chunk(b"1")
    await desk.queue.next()
    buffer.discarded = True
    other.chunk(b"x")
    desk.queue.open.set()
    assert set(await desk.queue.next_step()) == {"b"}
    if ending:
        assert await verdict == "discarded"


# --- the fence ---


async def test_a_refused_call_is_made_again_without_the_jobs_that_are_lost(desk: Desk) -> None:
    a, b, c = (desk.buffer(name) for name in "abc")
    desk.queue.take_away("a", "cancelled")
    desk.queue.take_away("c", "expired")
    for buffer in (a, b, c):
        buffer.chunk(b"1")
    verdict = desk.finish(c)
    refused, taken = [await desk.queue.next() for _ in range(2)]
    assert set(refused.parts.said) == {"a", "b", "c"}
    assert set(taken.parts.said) == {"b"}
    assert (refused.fence_token, taken.fence_token) == ("e-0", desk.queue.fences[0])
    assert desk.queue.renewals == [(0, "", ["a", "b", "c"])]
    assert not taken.again  # nothing of it has happened yet
    assert desk.lost == [("a", "cancelled"), ("c", "expired")]
    assert await verdict == "discarded"
    said = (await desk.say(b)).parts.said
    assert (said["b"].seq, desk.queue.calls.empty()) == (2, True)
    assert len(desk.queue.renewals) == 1


async def test_who_hears_of_a_job_is_asked_after_a_refused_call(desk: Desk) -> None:
    a, b = desk.buffer("a"), desk.buffer("b")
    assert (await desk.say(a, b)).ears == {"gw-1": ["a", "b"]}
    desk.queue.listeners["a"] = ("gw-1 gw-2", False)
    desk.queue.invalidate_fence()
    assert (await desk.say(a, b)).ears == {"gw-1": ["a", "b"]}
    assert (await desk.queue.next()).ears == {"gw-1": ["a", "b"], "gw-2": ["a"]}
    assert (await desk.say(a, b)).ears == {"gw-1": ["a", "b"], "gw-2": ["a"]}
    desk.finish(a)
    end = (await desk.queue.next()).parts.said["a"].end
    assert end
    assert end.watchers == "gw-1 gw-2"


async def test_of_an_answer_that_is_not_streamed_only_who_watches_it_hears(desk: Desk) -> None:
    buffer = desk.buffer("a", stream=False)
    assert (await desk.say(buffer)).ears == {}
    desk.queue.listeners["a"] = ("gw-1 gw-2", True)
    desk.queue.invalidate_fence()
    assert (await desk.say(buffer)).ears == {}
    again = await desk.queue.next()
    assert again.ears == {"gw-1": ["a"], "gw-2": ["a"]}
    assert again.parts.said["a"].seq == 2


async def test_who_has_no_fence_token_renews_before_it_speaks(desk: Desk) -> None:
    desk.lease._fence_tokens = [""]
    buffer = desk.buffer("a")
    buffer.chunk(b"1")
    call = await desk.queue.next()
    assert desk.queue.renewals == [(0, "", ["a"])]
    assert call.fence_token == desk.queue.fences[0] == buffer.fence_token
    assert (call.again, call.parts.said["a"].seq) == (False, 1)
    await turns()
    assert desk.queue.calls.empty()


@pytest.mark.parametrize("ending", [False, True])
async def test_a_job_leased_in_another_fence_token_makes_it_renew_first(
    desk: Desk, ending: bool
) -> None:
    old = desk.buffer("old")
    await desk.say(old)
    new = desk.buffer("new", fence_token="of another time")
    desk.queue.listeners["new"] = ("gw-1 gw-2", False)
    new.chunk(b"1")
    if ending:
        verdict = desk.finish(new)
    call = await desk.queue.next()
    # The worker is in its fencing token still: nobody has taken that away.
    assert desk.queue.renewals == [(0, "e-0", ["old", "new"])]
    assert call.fence_token == new.fence_token == "e-0"
    assert call.ears["gw-2"] == ["new"]
    if ending:
        assert await verdict == "ok"
    await desk.say(old)
    assert len(desk.queue.renewals) == 1


async def test_a_job_that_was_lost_before_it_spoke_says_nothing(desk: Desk) -> None:
    buffer = desk.buffer("a", fence_token="of another time")
    desk.queue.states["a"] = "cancelled"
    buffer.chunk(b"1")
    assert await desk.finish(buffer) == "discarded"
    assert desk.lost == [("a", "cancelled")]
    assert desk.queue.calls.empty()


@pytest.mark.parametrize("ending", [False, True])
async def test_who_is_not_in_hand_any_more_is_not_spoken_of_in_a_new_fence_token(
    desk: Desk, ending: bool
) -> None:
    gone, stays = desk.buffer("gone"), desk.buffer("stays")
    del desk.runs["gone"]  # so nobody asks what became of it
    desk.queue.invalidate_fence()
    gone.chunk(b"1")
    stays.chunk(b"1")
    if ending:
        verdict = desk.finish(gone)
    assert set(await desk.queue.next_step()) == {"gone", "stays"}
    assert set(await desk.queue.next_step()) == {"stays"}
    if ending:
        assert await verdict == "discarded"
    assert (gone.discarded, stays.discarded) == (True, False)


async def test_after_a_lost_connection_it_renews_before_it_speaks(desk: Desk) -> None:
    """Redis may be another one now, which has forgotten that something was taken away."""
    buffer, lost = desk.buffer("a"), desk.buffer("lost")
    await desk.say(buffer, lost)
    desk.queue.n_losses += 1
    desk.queue.states["lost"] = "cancelled"
    call = await desk.say(buffer, lost)
    assert desk.queue.renewals == [(0, "", ["a", "lost"])]
    assert set(call.parts.said) == {"a"}
    assert call.fence_token == buffer.fence_token == desk.queue.fences[0] != "e-0"
    await desk.say(buffer)
    assert len(desk.queue.renewals) == 1


async def test_a_call_that_fails_with_its_connection_is_repeated_in_a_new_fence_token(
    desk: Desk,
) -> None:
    desk.queue.open.clear()
    buffer = desk.buffer("a")
    buffer.chunk(b"1")
    first = await desk.queue.next()
    desk.queue.failures = [RedisConnectionError("closed")]
    desk.queue.n_losses += 1
    desk.queue.open.set()
    repeated = await desk.queue.next()
    assert desk.queue.renewals == [(0, "", ["a"])]
    assert (first.fence_token, repeated.fence_token) == ("e-0", desk.queue.fences[0])
    assert repeated.again


async def test_it_is_refused_until_nothing_happens_in_between(desk: Desk) -> None:
    desk.queue.changes = 6
    verdict = desk.finish(desk.buffer("a"))
    assert await verdict == "ok"
    calls = [desk.queue.calls.get_nowait() for _ in range(desk.queue.calls.qsize())]
    assert [call.again for call in calls] == [False] * 7
    assert len({call.fence_token for call in calls}) == 7


async def test_a_renewal_by_somebody_else_is_enough(desk: Desk) -> None:
    desk.queue.open.clear()
    buffer = desk.buffer("a")
    buffer.chunk(b"1")
    await desk.queue.next()
    desk.queue.invalidate_fence()
    await desk.lease.renew(0)  # as the keeper does, while the call is on its way
    desk.queue.open.set()
    again = await desk.queue.next()
    assert again.fence_token == desk.lease.fence_tokens[0] == desk.queue.fences[0]
    await turns()
    assert len(desk.queue.renewals) == 1
    assert desk.queue.calls.empty()


async def test_a_renewal_that_fails_is_repeated(desk: Desk) -> None:
    desk.queue.invalidate_fence()
    desk.queue.renewal_failures = list(FAILURES)
    buffer = desk.buffer("a")
    assert await desk.finish(buffer) == "ok"
    assert len(desk.queue.renewals) == len(FAILURES) + 1


async def test_a_repeated_call_that_is_refused_is_a_repeated_one_still(desk: Desk) -> None:
    """It may have been carried out, before the fence was taken away."""
    buffer, lost = desk.buffer("a"), desk.buffer("lost")
    buffer.chunk(b"1")
    lost.chunk(b"1")
    await desk.queue.lose_the_reply()
    desk.queue.take_away("lost", "cancelled")
    desk.queue.open.set()
    last = await desk.queue.next()
    assert (last.again, set(last.parts.said)) == (True, {"a"})
    await turns()
    assert desk.queue.readable("a") == [1]
    assert await desk.finish(buffer) == "ok"
    assert desk.queue.logs["a"] == [1]


async def test_an_end_whose_reply_was_lost_is_no_loss(desk: Desk) -> None:
    buffer = desk.buffer("a")
    buffer.chunk(b"1")
    desk.final_state["a"] = "completed"
    verdict = desk.finish(buffer)
    await desk.queue.lose_the_reply()
    desk.queue.take_away("a", "completed")  # by itself; of another job something has changed
    desk.queue.open.set()
    assert await verdict == "ok"
    last = await desk.queue.next()
    assert (last.again, set(last.parts.said)) == (True, {"a"})
    assert desk.lost == []
    assert desk.queue.logs["a"] == [1]


async def test_the_verdict_is_dropped_where_the_end_was_refused(desk: Desk) -> None:
    desk.queue.take_away("a", "cancelled")
    desk.queue.lost = {"d": "gone"}
    for name in "bc":
        desk.buffer(name).chunk(b"1")
    verdicts = [desk.finish(desk.buffer(name)) for name in "ad"]
    assert set(await desk.queue.next_step()) == set("abcd")
    assert set(await desk.queue.next_step()) == set("bcd")
    assert await asyncio.gather(*verdicts) == ["discarded", "gone"]
    assert desk.lost == [("a", "cancelled")]  # who waits for a verdict need not be told


async def test_an_older_lease_of_a_job_says_nothing_beside_the_new_one(desk: Desk) -> None:
    old = desk.buffer("a", lease_id="old")
    old.chunk(b"1")
    old.discarded = True  # as the loop does when it gets the job anew
    new = desk.buffer("a", lease_id="new", generation=3)
    new.chunk(b"2")
    verdict = desk.finish(old)
    said = (await desk.queue.next_step())["a"]
    assert (said.seq, said.chunks, said.generation, said.end) == (1, b"2", 3, None)
    assert await verdict == "discarded"
    assert await desk.finish(new) == "ok"
    end = (await desk.queue.next_step())["a"].end
    assert end
    assert end.lease_id == "new"


# --- what is put into the logs ---


async def test_the_first_entry_is_put_into_the_log_by_the_call_that_publishes_it(
    desk: Desk,
) -> None:
    """A job whose log is empty has shown nothing to anyone, so it may be started anew."""
    buffer = desk.buffer("a", logged=False)
    calls = [await desk.say(buffer) for _ in range(FLUSH_AFTER + 1)]
    log_flushes = {n: call.log_flushes for n, call in enumerate(calls, 1) if call.log_flushes}
    assert log_flushes == {
        1: {"a": [1]},
        FLUSH_AFTER + 1: {"a": list(range(2, FLUSH_AFTER + 2))},
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_that_ends_with_its_first_entry_brings_it_with_its_end(
    desk: Desk, stream: bool
) -> None:
    buffer = desk.buffer("a", logged=False, stream=stream)
    buffer.delta(0, 0, [1], "x")
    assert await desk.finish(buffer) == "ok"
    call = await desk.queue.next()
    end = call.parts.said["a"].end
    assert end
    assert [entry.seq for entry in end.before] == [1]
    assert call.log_flushes == {}


async def test_entries_are_put_into_their_log_together(desk: Desk) -> None:
    buffer = desk.buffer("a")
    calls = [await desk.say(buffer) for _ in range(3 * FLUSH_AFTER)]
    log_flushes = {n: call.log_flushes for n, call in enumerate(calls, 1) if call.log_flushes}
    assert log_flushes == {
        last: {"a": list(range(last - FLUSH_AFTER + 1, last + 1))}
        for last in (FLUSH_AFTER, 2 * FLUSH_AFTER, 3 * FLUSH_AFTER)
    }


async def test_what_is_put_into_a_log_is_what_was_said(desk: Desk) -> None:
    buffer = desk.buffer("a")
    calls = []
    for n in range(FLUSH_AFTER):
        buffer.delta(0, 0, [n], str(n))
        buffer.chunk(b'{"text": "%d"}' % n)
        desk.step()
        calls.append(await desk.queue.next())
    said = [call.parts.said["a"].entry for call in calls]
    assert parse_segments([calls[-1].parts.segments["a"]]) == said


async def test_a_job_that_pauses_has_its_entry_put_into_its_log_in_time(desk: Desk) -> None:
    buffer = desk.buffer("a")
    await desk.say(buffer)
    calls = await desk.pass_by(FLUSH_AFTER - 1)
    assert [call.log_flushes.get("a") for call in calls] == [None] * (FLUSH_AFTER - 2) + [[1]]
    assert "a" not in calls[-1].parts.said
    # Nothing is left of it, so what it says next has its own time.
    calls = await desk.pass_by(5)
    calls.append(await desk.say(buffer))
    calls += await desk.pass_by(FLUSH_AFTER - 1)
    assert [call.log_flushes.get("a") for call in calls] == [None] * (FLUSH_AFTER + 4) + [[2]]


async def test_steps_are_counted_though_the_call_is_repeated(desk: Desk) -> None:
    """A call that fails may have left nothing, one that is refused has: neither is a step more."""
    buffer = desk.buffer("a")
    await desk.say(buffer)
    for n in range(FLUSH_AFTER - 2):
        if n % 2:
            desk.queue.invalidate_fence()
        else:
            desk.queue.failures = [RedisConnectionError("away")]
        desk.buffer(f"other-{n}").chunk(b"x")
        calls = [await desk.queue.next() for _ in range(2)]
        assert [call.log_flushes for call in calls] == [{}, {}]
    assert (await desk.say(buffer)).log_flushes["a"] == [1, 2]


@pytest.mark.parametrize("how", ["failed", "carried out", "refused"])
async def test_a_repeated_call_puts_the_same_into_the_logs(desk: Desk, how: str) -> None:
    buffer = desk.buffer("a")
    for _ in range(FLUSH_AFTER - 1):
        await desk.say(buffer)
    await turns()
    if how == "refused":
        desk.queue.invalidate_fence()
    else:
        desk.queue.failures = [RedisConnectionError("away")]
        desk.queue.lands = how == "carried out"
    calls = [await desk.say(buffer), await desk.queue.next()]
    numbers = list(range(1, FLUSH_AFTER + 1))
    assert [call.log_flushes for call in calls] == [{"a": numbers}] * 2
    assert calls[1].again == (how != "refused")
    assert await desk.finish(buffer) == "ok"
    assert desk.queue.logs["a"] == numbers


async def test_an_end_brings_the_entries_that_are_not_in_the_log_yet(desk: Desk) -> None:
    buffer = desk.buffer("a")
    for _ in range(FLUSH_AFTER + 2):
        await desk.say(buffer)
    buffer.chunk(b"x")
    assert await desk.finish(buffer) == "ok"
    end = (await desk.queue.next_step())["a"].end
    assert end
    assert [entry.seq for entry in end.before] == [FLUSH_AFTER + n for n in (1, 2, 3)]
    assert end.seq == FLUSH_AFTER + 4
    calls = await desk.pass_by(2 * FLUSH_AFTER)
    assert all("a" not in call.log_flushes for call in calls)


async def test_an_end_with_nothing_new_brings_what_was_said_before(desk: Desk) -> None:
    buffer = desk.buffer("a")
    for _ in range(2):
        await desk.say(buffer)
    assert await desk.finish(buffer) == "ok"
    last = (await desk.queue.next_step())["a"]
    assert last.entry is None
    assert last.end
    assert ([entry.seq for entry in last.end.before], last.end.seq) == ([1, 2], 3)


async def test_an_end_of_a_job_whose_log_is_complete_brings_nothing(desk: Desk) -> None:
    buffer = desk.buffer("a")
    for _ in range(FLUSH_AFTER):
        await desk.say(buffer)
    assert await desk.finish(buffer) == "ok"
    end = (await desk.queue.next_step())["a"].end
    assert end
    assert (end.segment, end.seq) == (b"", FLUSH_AFTER + 1)


async def test_the_end_of_a_job_that_nobody_hears_stands_in_its_log_only(desk: Desk) -> None:
    buffer = desk.buffer("a", watchers="")
    buffer.chunk(b"x")
    assert await desk.finish(buffer) == "ok"
    call = await desk.queue.next()
    end = call.parts.said["a"].end
    assert end
    assert ([entry.seq for entry in end.before], end.seq) == ([1], 2)
    assert (call.step.frame_sizes, call.step.frames, call.step.messages) == (b"", b"", [])


async def test_an_end_in_the_step_in_which_its_entries_are_due_brings_them_once(
    desk: Desk,
) -> None:
    buffer = desk.buffer("a")
    for _ in range(FLUSH_AFTER - 1):
        await desk.say(buffer)
    buffer.chunk(b"x")
    assert await desk.finish(buffer) == "ok"
    call = await desk.queue.next()
    end = call.parts.said["a"].end
    assert end
    assert [entry.seq for entry in end.before] == list(range(1, FLUSH_AFTER + 1))
    assert call.log_flushes == {}


@pytest.mark.parametrize("noticed", ["before", "by the refusal"])
async def test_nothing_is_put_into_the_log_of_a_job_that_is_lost(desk: Desk, noticed: str) -> None:
    lost, other = desk.buffer("lost"), desk.buffer("other")
    await desk.say(lost, other)
    await desk.pass_by(FLUSH_AFTER - 2)
    if noticed == "before":
        lost.discarded = True
    desk.queue.take_away("lost", "cancelled")
    call = await desk.say(other)
    assert ("lost" in call.log_flushes) == (noticed != "before")
    assert (await desk.queue.next()).log_flushes == {"other": [1, 2]}


async def test_nothing_is_put_into_the_log_of_a_job_that_is_not_in_hand_any_more(
    desk: Desk,
) -> None:
    gone = desk.buffer("gone")
    await desk.say(gone)
    del desk.runs["gone"]  # its run has failed, say
    await desk.pass_by(FLUSH_AFTER - 3)
    desk.queue.take_away("gone", "queued")  # by the reaper
    await desk.pass_by(1)
    await desk.queue.next()
    last = (await desk.pass_by(1))[0]
    assert "gone" not in last.log_flushes


async def test_what_is_due_is_put_into_its_log_though_all_that_would_speak_are_lost(
    desk: Desk,
) -> None:
    pauses, lost = desk.buffer("pauses"), desk.buffer("lost")
    await desk.say(pauses)
    await desk.pass_by(FLUSH_AFTER - 2)
    await turns()
    desk.queue.take_away("lost", "cancelled")
    assert (await desk.say(lost)).log_flushes == {"pauses": [1]}
    await turns(20)
    await desk.pass_by(STEPS)
    await turns(20)
    assert desk.queue.readable("pauses") == [1]
    assert await desk.finish(pauses) == "ok"


@pytest.mark.parametrize("shards", [2])
async def test_each_shard_counts_its_own_steps(desk: Desk) -> None:
    a, b = desk.buffer("a", 0), desk.buffer("b", 1)
    await desk.say(a)
    for _ in range(FLUSH_AFTER - 1):
        assert (await desk.say(b)).log_flushes == {}
    assert (await desk.say(b)).log_flushes == {"b": list(range(1, FLUSH_AFTER + 1))}
    for _ in range(FLUSH_AFTER - 2):
        assert (await desk.say(a)).log_flushes == {}
    assert (await desk.say(a)).log_flushes == {"a": list(range(1, FLUSH_AFTER + 1))}


async def test_the_parts_of_a_long_answer_are_a_step_each(desk: Desk) -> None:
    buffer = desk.buffer("a")
    await desk.say(buffer)
    for n in range(FLUSH_AFTER // 2):
        for part in range(2):
            desk.finish(desk.buffer(f"{n}.{part}"), long_answer(2 * HALF))
        calls = [await desk.queue.next() for _ in range(2)]
        last = n == FLUSH_AFTER // 2 - 1
        assert [call.log_flushes for call in calls] == [{"a": [1]} if last else {}, {}]


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_all_that_was_said_can_be_read(desk: Desk, seed: int) -> None:
    """And nothing is put into a log twice or out of order, which the queue looks at."""
    chance = random.Random(seed)
    talk = chance.choice([0.02, 0.1, 0.5, 1.0])
    trouble = chance.choice([0.0, 0.05, 0.3])
    names = [f"job-{n}" for n in range(chance.randint(1, 6))]
    live = {name: desk.buffer(name, logged=chance.random() < 0.5) for name in names}
    talking = dict(live)  # with those that are lost and do not know it
    verdicts = []
    for n in range(400):
        if chance.random() < trouble:
            what = chance.choice(["fails", "lands", "fence", "loss"])
            if what == "fence":
                desk.queue.invalidate_fence()
            elif what == "loss" and len(live) > 1:
                name = chance.choice(sorted(live))
                desk.queue.take_away(name, "cancelled")
                del live[name]
            else:
                desk.queue.failures = [RedisConnectionError(what)] * chance.randint(1, 2)
                desk.queue.lands = what == "lands"
        for buffer in list(talking.values()):
            if chance.random() < talk and not buffer.discarded:
                buffer.chunk(b"x")
        if live and chance.random() < 0.02:
            name = chance.choice(sorted(live))
            verdicts.append(desk.finish(live.pop(name)))
            del talking[name]
        if chance.random() < 0.1:
            name = f"new-{n}"
            live[name] = talking[name] = desk.buffer(
                name, fence_token=chance.choice(["e-0", "", "e-1"])
            )
        desk.step()
        await turns(chance.choice([1, 10, 20]))
        if desk.task.done():
            await desk.task
        for name in live:
            said = desk.queue.entries.get(name, 0)
            assert desk.queue.readable(name) == list(range(1, said + 1)), name
    verdicts += [desk.finish(buffer) for buffer in live.values()]
    async with asyncio.timeout(DEADLINE_S):
        assert set(await asyncio.gather(*verdicts)) <= {"ok", "discarded"}
    for name in live:
        assert desk.queue.logs.get(name, []) == desk.queue.readable(name)


# --- shards, and what is on offer ---


@pytest.mark.parametrize("shards", [3])
async def test_shards_have_calls_of_their_own(desk: Desk) -> None:
    desk.queue.open.clear()
    for shard in range(3):
        desk.buffer(f"a{shard}", shard).chunk(b"1")
    verdicts = [desk.finish(desk.buffer(f"b{shard}", shard)) for shard in range(3)]
    calls = [await desk.queue.next() for _ in range(3)]  # none waits for another
    assert sorted((call.shard, sorted(call.parts.said)) for call in calls) == [
        (shard, [f"a{shard}", f"b{shard}"]) for shard in range(3)
    ]
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok"] * 3


async def test_nothing_is_sent_when_nobody_has_spoken(desk: Desk) -> None:
    for _ in range(5):
        desk.step()
        await turns()
    assert desk.queue.calls.empty()
    assert desk.counted("flotilla_engine_steps_total") == 5
    assert desk.counted("flotilla_flushes_total") == 0


@pytest.mark.parametrize("shards", [2])
async def test_what_is_on_offer_leaves_with_the_output_of_its_shard(desk: Desk) -> None:
    desk.buffer("a", 0).chunk(b"x")
    desk.buffer("b", 1).chunk(b"x")
    desk.step()
    calls = [await desk.queue.next() for _ in range(2)]
    assert sorted((call.shard, call.offer) for call in calls) == [
        (0, SlotUpdate("p", "w", 0, 0)),
        (1, SlotUpdate("p", "w", 1, 0)),
    ]
    await turns()
    assert sorted(desk.advertised_slots.heard) == [(0, 0), (1, 0)]


async def test_what_may_have_been_heard_is_not_said_again(desk: Desk) -> None:
    desk.queue.failures = [RedisConnectionError("no answer")]
    desk.buffer().chunk(b"x")
    desk.step()
    calls = [await desk.queue.next() for _ in range(2)]
    assert [call.offer for call in calls] == [SlotUpdate("p", "w", 0, 0), None]
    assert desk.advertised_slots.heard == [(0, None)]


async def test_what_is_on_offer_is_taken_back_from_a_refused_call(desk: Desk) -> None:
    buffer = desk.buffer("a")
    desk.queue.invalidate_fence()
    await desk.say(buffer)
    assert (await desk.queue.next()).offer is None
    assert (desk.advertised_slots.heard, desk.advertised_slots.refused) == (
        [],
        [(0, SlotUpdate("p", "w", 0, 0))],
    )


async def test_nothing_is_said_with_a_call_that_is_not_made(desk: Desk) -> None:
    """Who has begun to say something has to end it: the worker's next claim waits for that."""
    large = long_answer(2 * HALF)
    desk.queue.open.clear()
    first, second = desk.buffer("first"), desk.buffer("second")
    verdicts = [desk.finish(first, large), desk.finish(second, large)]  # a call each
    await desk.queue.next()
    second.discarded = True  # while the first call is on its way
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok", "discarded"]
    assert (desk.advertised_slots.asked, desk.advertised_slots.heard) == (1, [(0, 0)])


async def test_a_connection_that_is_lost_during_renewals_costs_no_job(desk: Desk) -> None:
    buffer = desk.buffer()
    desk.queue.invalidate_fence()
    desk.queue.breaks = 2
    buffer.chunk(b"1")
    desk.step()
    while (call := await desk.queue.next()).fence_token != desk.queue.fences[0]:
        pass
    assert call.parts.said["a"].chunks == b"1"
    assert not buffer.discarded
    assert len(desk.queue.renewals) == 3


async def test_what_can_not_be_packed_ends_the_publisher(desk: Desk) -> None:
    no_bytes: Any = object()
    desk.buffer().chunk(no_bytes)
    desk.step()
    with pytest.raises(TypeError):
        await desk.task
