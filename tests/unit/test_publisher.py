"""The publisher: one call per step and shard, in order, repeated until Redis takes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.queue import Answer, Emission
from shared.redis import RedisConnectionError, ResponseError
from shared.states import JobEvent
from shared.token_log import Delta, Prompt, unpack_journal
from worker import publisher as module
from worker.publisher import Outbox, Publisher

DEADLINE_S = 30.0
DONE = Answer(JobEvent.COMPLETE, "", 200, "text/event-stream", b"", 1, 2)

Call = tuple[Any, ...]


class Queue:
    """Takes calls; each waits until `open` is set and may fail first."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.lost: dict[str, str] = {}
        self.verdict = "ok"

    async def emit(self, shard: int, emissions: list[Emission]) -> dict[str, str]:
        await self._take("emit", shard, emissions)
        return self.lost

    async def finish(self, job: LeasedJob, seq: int, answer: Answer) -> str:
        await self._take("finish", job.id, seq, answer)
        return self.verdict

    async def _take(self, *call: Any) -> None:
        self.calls.put_nowait(call)
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)

    async def next(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()

    async def next_step(self) -> dict[str, Emission]:
        """The emissions of the next call, by job."""
        name, _, emissions = await self.next()
        assert name == "emit"
        return {emission.job.id: emission for emission in emissions}


class Desk:
    """A running publisher, its queue, and who was lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_RETRY_S", (0.0, 0.001))
        self.queue = Queue()
        self.lost: list[tuple[str, str]] = []
        self.registry = CollectorRegistry()
        queue: Any = self.queue
        self.publisher = Publisher(
            queue,
            WorkerMetrics(self.registry),
            lambda job, state: self.lost.append((job.id, state)),
        )
        self.task = asyncio.create_task(self.publisher.run())

    def outbox(self, name: str = "a", shard: int = 0) -> Outbox:
        job = LeasedJob(name, shard, "n" * 16, 1, True, "/e", b"{}", 0.0)
        return Outbox(job, self.publisher)

    def step(self) -> None:
        self.publisher.step()

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    desk = Desk(monkeypatch)
    yield desk
    desk.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ResponseError):
        await desk.task


async def turns(count: int = 5) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_jobs_of_a_step_leave_in_one_call(desk: Desk) -> None:
    outboxes = [desk.outbox(f"job-{i}") for i in range(50)]
    for outbox in outboxes:
        outbox.delta(0, 0, [7], "x")
        outbox.chunk(b"x")
    desk.step()
    step = await desk.queue.next_step()
    assert len(step) == 50
    assert all((e.seq, e.chunk) == (1, b"x") for e in step.values())
    assert desk.queue.calls.empty()
    assert (
        desk.counted("flotilla_flushes_total") == desk.counted("flotilla_engine_steps_total") == 1
    )


async def test_what_runs_say_in_the_same_turn_as_the_step_leaves_with_it(desk: Desk) -> None:
    first, second = desk.outbox("a"), desk.outbox("b")
    first.chunk(b"1")
    desk.step()
    asyncio.get_running_loop().call_soon(second.chunk, b"2")  # woken by the step, speaks next
    assert set(await desk.queue.next_step()) == {"a", "b"}


async def test_while_a_call_is_on_its_way_later_steps_pile_up(desk: Desk) -> None:
    outbox, other = desk.outbox("a"), desk.outbox("b")
    desk.queue.open.clear()
    outbox.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    for data in (b"2", b"3", b"4"):
        outbox.delta(0, 0, [int(data)], data.decode())
        outbox.chunk(data)
        desk.step()
        await turns()
    other.chunk(b"x")
    desk.step()
    await turns()
    assert desk.queue.calls.empty()
    desk.queue.open.set()
    step = await desk.queue.next_step()
    assert (step["a"].seq, step["a"].chunk) == (2, b"234")
    deltas = [Delta(0, 0, (n,), str(n)) for n in (2, 3, 4)]
    assert unpack_journal(step["a"].journal) == deltas
    assert step["b"].chunk == b"x"
    assert desk.queue.calls.empty()


async def test_a_prompt_alone_sends_nothing_and_leaves_with_the_first_delta(desk: Desk) -> None:
    silent, speaks = desk.outbox("silent"), desk.outbox("speaks")
    silent.prompt(0, 12)
    speaks.prompt(0, 3)
    speaks.delta(0, 0, [1], "x")
    desk.step()
    step = await desk.queue.next_step()
    assert set(step) == {"speaks"}
    assert unpack_journal(step["speaks"].journal) == [Prompt(0, 3), Delta(0, 0, (1,), "x")]
    assert silent.entered
    assert silent.transcript.prompt_tokens == 12


async def test_output_that_no_step_follows_leaves_all_the_same(desk: Desk) -> None:
    desk.outbox("a").chunk(b"error")
    assert (await desk.queue.next_step())["a"].chunk == b"error"


async def test_an_outbox_counts_its_entries(desk: Desk) -> None:
    outbox = desk.outbox()
    assert outbox.take() is None
    for seq in (1, 2, 3):
        outbox.chunk(b"x")
        taken = outbox.take()
        assert taken is not None
        assert (taken.seq, taken.chunk, taken.journal) == (seq, b"x", b"")
        assert outbox.take() is None


async def test_the_end_goes_after_the_last_output(desk: Desk) -> None:
    outbox = desk.outbox()
    outbox.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    outbox.chunk(b"2")
    verdict = asyncio.create_task(desk.publisher.finish(outbox, DONE))
    assert (await desk.queue.next_step())["a"].seq == 2
    assert await desk.queue.next() == ("finish", "a", 3, DONE)
    assert await verdict == "ok"


async def test_the_end_waits_for_the_call_that_is_on_its_way(desk: Desk) -> None:
    outbox = desk.outbox()
    desk.queue.open.clear()
    outbox.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    verdict = asyncio.create_task(desk.publisher.finish(outbox, DONE))
    await turns()
    assert desk.queue.calls.empty()
    desk.queue.open.set()
    assert (await desk.queue.next())[:3] == ("finish", "a", 2)
    assert await verdict == "ok"


async def test_a_job_that_said_nothing_ends_with_its_first_entry(desk: Desk) -> None:
    verdict = asyncio.create_task(desk.publisher.finish(desk.outbox(), DONE))
    assert (await desk.queue.next())[:3] == ("finish", "a", 1)
    assert await verdict == "ok"


async def test_ends_do_not_wait_for_each_other(desk: Desk) -> None:
    desk.queue.open.clear()
    verdicts = [
        asyncio.create_task(desk.publisher.finish(desk.outbox(name), DONE)) for name in "abc"
    ]
    assert sorted([(await desk.queue.next())[1] for _ in verdicts]) == ["a", "b", "c"]
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok"] * 3


async def test_the_verdict_is_what_redis_says(desk: Desk) -> None:
    desk.queue.verdict = "cancelled"
    assert await desk.publisher.finish(desk.outbox(), DONE) == "cancelled"


FAILURES = [
    RedisConnectionError("away"),
    OSError("away"),
    ResponseError("OOM command not allowed"),
    ResponseError("MISCONF disk is full"),
    ResponseError("READONLY You can't write against a read only replica."),
    ResponseError("LOADING Redis is loading the dataset in memory"),
]


async def test_a_failed_call_is_repeated_as_it_was(desk: Desk) -> None:
    outbox = desk.outbox()
    desk.queue.failures = list(FAILURES)
    outbox.chunk(b"1")
    desk.step()
    first = (await desk.queue.next_step())["a"]
    outbox.chunk(b"2")
    for _ in FAILURES:
        assert (await desk.queue.next_step())["a"] == first
    assert (await desk.queue.next_step())["a"].seq == 2


async def test_a_failed_end_is_repeated_as_it_was(desk: Desk) -> None:
    desk.queue.failures = list(FAILURES)
    assert await desk.publisher.finish(desk.outbox(), DONE) == "ok"
    calls = [await desk.queue.next() for _ in range(len(FAILURES) + 1)]
    assert all(call == calls[0] for call in calls)
    assert desk.queue.calls.empty()


async def test_what_will_never_be_taken_ends_the_publisher(desk: Desk) -> None:
    desk.queue.failures = [ResponseError("WRONGTYPE")]
    desk.outbox().chunk(b"1")
    with pytest.raises(ResponseError):
        await desk.task


async def test_a_dropped_job_sends_nothing_more(desk: Desk) -> None:
    dropped, kept = desk.outbox("dropped"), desk.outbox("kept")
    dropped.chunk(b"1")
    kept.chunk(b"1")
    dropped.dropped = True
    desk.step()
    assert set(await desk.queue.next_step()) == {"kept"}
    dropped.chunk(b"2")
    assert await desk.publisher.finish(dropped, DONE) == "dropped"
    assert desk.queue.calls.empty()


@pytest.mark.parametrize("ending", [False, True])
async def test_a_call_is_not_repeated_for_jobs_that_are_dropped(desk: Desk, ending: bool) -> None:
    outbox, other = desk.outbox("a"), desk.outbox("b")
    desk.queue.open.clear()
    desk.queue.failures = [RedisConnectionError("away")]
    if ending:
        verdict = asyncio.create_task(desk.publisher.finish(outbox, DONE))
    else:
        outbox.chunk(b"1")
    await desk.queue.next()
    outbox.dropped = True
    other.chunk(b"x")
    desk.queue.open.set()
    assert set(await desk.queue.next_step()) == {"b"}
    if ending:
        assert await verdict == "dropped"


async def test_who_was_lost_is_told(desk: Desk) -> None:
    desk.queue.lost = {"a": "cancelled"}
    for name in "ab":
        desk.outbox(name).chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    desk.queue.lost = {}
    desk.outbox("c").chunk(b"1")
    await desk.queue.next_step()
    assert desk.lost == [("a", "cancelled")]


async def test_shards_have_calls_of_their_own(desk: Desk) -> None:
    for shard in range(3):
        for name in "ab":
            desk.outbox(f"{name}{shard}", shard).chunk(b"1")
    desk.step()
    calls = [await desk.queue.next() for _ in range(3)]
    assert sorted((shard, len(emissions)) for _, shard, emissions in calls) == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]


async def test_nothing_is_sent_when_nobody_has_spoken(desk: Desk) -> None:
    for _ in range(5):
        desk.step()
        await turns()
    assert desk.queue.calls.empty()
    assert desk.counted("flotilla_engine_steps_total") == 5
    assert desk.counted("flotilla_flushes_total") == 0
