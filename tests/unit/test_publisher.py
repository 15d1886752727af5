"""The publisher: one call per step and shard, in order, repeated until Redis takes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.envelope import Unfolder
from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.queue import Answer, Emission, Offer, make_emission
from shared.redis import RedisConnectionError, ResponseError
from shared.states import JobEvent
from shared.token_log import Delta, Entry, Prompt, parse_entries, unpack_journal
from worker import publisher as module
from worker.publisher import Outbox, Publisher

DEADLINE_S = 30.0
DONE = Answer(JobEvent.COMPLETE, "", 200, "text/event-stream", b"", 1, 2)

Call = tuple[int, list[Emission]]


def long_answer(size: int) -> Answer:
    return Answer(JobEvent.COMPLETE, "", 200, "application/json", b"x" * size, 1, 2)


def entry(emission: Emission) -> Entry:
    """The log entry that comes of it."""
    (parsed,) = parse_entries([emission.chunks + emission.journal], emission.seq - 1)
    return parsed


def chunks(emission: Emission) -> bytes:
    """What its client gets; chunks without a quote have no envelope."""
    return Unfolder().unfold(entry(emission).items)


def journal(emission: Emission) -> list[Delta | Prompt]:
    parsed = entry(emission)
    return unpack_journal(parsed.journal, parsed.items)


def said(emission: Emission) -> Answer | None:
    """What the job ends with, if it does."""
    return DONE if emission.ending and emission.ending[0] == DONE.event else None


class Queue:
    """Takes calls; each waits until `open` is set and may fail first."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.offers: list[tuple[int, Offer | None]] = []
        self.lost: dict[str, str] = {}
        self.shards = 1

    def read_on(self) -> None:
        pass

    async def emit(
        self,
        shard: int,
        emissions: list[Emission],
        *,
        offer: Offer | None = None,
        patient: bool = False,
    ) -> dict[str, str]:
        self.offers.append((shard, offer))
        self.calls.put_nowait((shard, list(emissions)))
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        return {e.job_id: self.lost[e.job_id] for e in emissions if e.job_id in self.lost}

    async def next(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()

    async def next_step(self) -> dict[str, Emission]:
        """The emissions of the next call, by job."""
        _, emissions = await self.next()
        step = {emission.job_id: emission for emission in emissions}
        assert len(step) == len(emissions), "a job stands twice in one call"
        return step


class Offering:
    """Has something to tell each time; `heard` is what was said to have come."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int | None]] = []
        self.asked = 0

    def news(self, shard: int) -> Offer:
        self.asked += 1
        return Offer("p", "w", shard, 0)

    def said(self, shard: int, taken: int | None = 0) -> None:
        self.heard.append((shard, taken))


class Desk:
    """A running publisher, its queue, and who was lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_RETRY_S", (0.0, 0.001))
        self.queue = Queue()
        self.lost: list[tuple[str, str]] = []
        self.offers: Any = Offering()
        self.registry = CollectorRegistry()
        queue: Any = self.queue
        self.publisher = Publisher(
            queue,
            WorkerMetrics(self.registry),
            lambda job, state: self.lost.append((job.id, state)),
            self.offers,
        )
        self.task = asyncio.create_task(self.publisher.run())

    def outbox(self, name: str = "a", shard: int = 0, nonce: str = "n" * 16) -> Outbox:
        job = LeasedJob(name, shard, nonce, 1, True, "/e", b"{}", 0.0)
        return Outbox(job, self.publisher)

    def finish(self, outbox: Outbox, answer: Answer = DONE) -> asyncio.Task[str]:
        return asyncio.create_task(self.publisher.finish(outbox, answer))

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
    assert all((e.seq, chunks(e), said(e)) == (1, b"x", None) for e in step.values())
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
    assert (step["a"].seq, chunks(step["a"])) == (2, b"234")
    assert journal(step["a"]) == [Delta(0, 0, (n,), str(n)) for n in (2, 3, 4)]
    assert chunks(step["b"]) == b"x"
    assert desk.queue.calls.empty()


async def test_a_prompt_alone_sends_nothing_and_leaves_with_the_first_delta(desk: Desk) -> None:
    silent, speaks = desk.outbox("silent"), desk.outbox("speaks")
    silent.prompt(0, 12)
    speaks.prompt(0, 3)
    speaks.delta(0, 0, [1], "x")
    desk.step()
    step = await desk.queue.next_step()
    assert set(step) == {"speaks"}
    assert journal(step["speaks"]) == [Prompt(0, 3), Delta(0, 0, (1,), "x")]
    assert chunks(step["speaks"]) == b""
    assert silent.entered
    assert silent.prompt_tokens == 12


async def test_an_outbox_counts_the_tokens(desk: Desk) -> None:
    outbox = desk.outbox()
    assert (outbox.prompt_tokens, outbox.completion_tokens) == (0, 0)
    outbox.prompt(0, 3)
    outbox.prompt(1, 4)
    outbox.delta(0, 0, [1, 2], "ab")
    outbox.delta(1, 1, [3], "c")
    outbox.take()
    outbox.delta(1, 0, [], "")
    assert (outbox.prompt_tokens, outbox.completion_tokens) == (7, 3)


async def test_a_token_of_a_stream_is_hardly_more_than_its_text(desk: Desk) -> None:
    outbox, unfolder = desk.outbox(), Unfolder()
    sizes = []
    for n, text in enumerate("abcdef"):
        chunk = b'data: {"id": "chatcmpl-%s", "text": "%c", "more": null}' % (b"0" * 99, ord(text))
        outbox.delta(0, 0, [n], text)
        outbox.chunk(chunk)
        desk.step()
        emission = (await desk.queue.next_step())["a"]
        assert unfolder.unfold(entry(emission).items) == chunk
        assert journal(emission) == [Delta(0, 0, (n,), text)]
        sizes.append(len(emission.chunks) + len(emission.journal))
    assert sizes[0] > 100
    assert sizes[2:] == [len("[") + len("'x") + len("n")] * 4


async def test_output_that_no_step_follows_leaves_all_the_same(desk: Desk) -> None:
    desk.outbox("a").chunk(b"error")
    assert chunks((await desk.queue.next_step())["a"]) == b"error"


async def test_an_outbox_counts_its_entries(desk: Desk) -> None:
    outbox = desk.outbox()
    assert outbox.take() is None
    for seq in (1, 2, 3):
        outbox.chunk(b"x")
        taken = outbox.take()
        assert taken is not None
        assert (taken.seq, chunks(taken), taken.journal) == (seq, b"x", b"")
        assert outbox.take() is None


async def test_the_end_leaves_with_the_last_output_in_one_call(desk: Desk) -> None:
    outbox = desk.outbox()
    outbox.chunk(b"1")
    desk.step()
    first = (await desk.queue.next_step())["a"]
    assert (first.seq, said(first)) == (1, None)
    outbox.delta(0, 0, [7], "2")
    outbox.chunk(b"2")
    verdict = desk.finish(outbox)
    last = (await desk.queue.next_step())["a"]
    assert (last.seq, chunks(last), said(last)) == (2, b"2", DONE)
    assert journal(last) == [Delta(0, 0, (7,), "2")]
    assert await verdict == "ok"
    assert desk.queue.calls.empty()


async def test_output_and_end_leave_together_though_the_step_has_ended(desk: Desk) -> None:
    outbox, other = desk.outbox("a"), desk.outbox("b")
    outbox.chunk(b"1")
    other.chunk(b"x")
    desk.step()
    verdict = desk.finish(outbox)  # the run goes on in the turn in which it has spoken
    step = await desk.queue.next_step()
    assert (step["a"].seq, chunks(step["a"]), said(step["a"])) == (1, b"1", DONE)
    assert said(step["b"]) is None
    assert await verdict == "ok"
    assert desk.queue.calls.empty()


async def test_the_end_waits_for_the_call_that_is_on_its_way(desk: Desk) -> None:
    outbox = desk.outbox()
    desk.queue.open.clear()
    outbox.chunk(b"1")
    desk.step()
    await desk.queue.next_step()
    verdict = desk.finish(outbox)
    await turns()
    assert desk.queue.calls.empty()
    desk.queue.open.set()
    end = (await desk.queue.next_step())["a"]
    assert end == make_emission(outbox.job, 2, b"", b"", DONE)
    assert await verdict == "ok"


async def test_a_job_that_said_nothing_ends_with_its_first_entry(desk: Desk) -> None:
    outbox = desk.outbox()
    verdict = desk.finish(outbox)
    assert (await desk.queue.next_step())["a"] == make_emission(outbox.job, 1, b"", b"", DONE)
    assert await verdict == "ok"


async def test_an_end_is_not_forgotten_when_its_job_speaks_once_more(desk: Desk) -> None:
    outbox = desk.outbox()
    verdict = desk.finish(outbox)
    await turns(1)
    outbox.chunk(b"1")
    last = (await desk.queue.next_step())["a"]
    assert (last.seq, chunks(last), said(last)) == (1, b"1", DONE)
    assert await verdict == "ok"


async def test_a_prompt_that_no_token_followed_is_told_with_the_end(desk: Desk) -> None:
    outbox = desk.outbox()
    outbox.prompt(0, 5)
    verdict = desk.finish(outbox)
    end = (await desk.queue.next_step())["a"]
    assert (end.seq, chunks(end), journal(end), said(end)) == (1, b"", [Prompt(0, 5)], DONE)
    assert await verdict == "ok"


async def test_ends_do_not_wait_for_each_other(desk: Desk) -> None:
    desk.queue.open.clear()
    verdicts = [desk.finish(desk.outbox(name)) for name in "abc"]
    step = await desk.queue.next_step()
    assert {name: said(e) for name, e in step.items()} == {"a": DONE, "b": DONE, "c": DONE}
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok"] * 3
    assert desk.queue.calls.empty()


async def test_the_verdict_is_what_redis_says(desk: Desk) -> None:
    desk.queue.lost = {"b": "cancelled", "c": "gone"}
    verdicts = [desk.finish(desk.outbox(name)) for name in "abc"]
    assert await asyncio.gather(*verdicts) == ["ok", "cancelled", "gone"]
    assert desk.lost == []  # who waits for a verdict need not be told


async def test_a_verdict_that_nobody_waits_for_any_more_harms_nobody(desk: Desk) -> None:
    desk.queue.open.clear()
    left, stays = desk.finish(desk.outbox("a")), desk.finish(desk.outbox("b"))
    await desk.queue.next_step()
    left.cancel()
    desk.queue.open.set()
    assert await stays == "ok"
    assert not desk.task.done()


# --- long answers ---

HALF = module._CALL_BYTES // 2


async def test_long_answers_are_spread_over_calls_in_their_order(desk: Desk) -> None:
    sizes = [HALF, HALF, 1, HALF, HALF, 0, 3 * HALF, 0]
    verdicts = [desk.finish(desk.outbox(str(i)), long_answer(n)) for i, n in enumerate(sizes)]
    calls = [await desk.queue.next_step() for _ in range(5)]
    assert [list(call) for call in calls] == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], ["7"]]
    assert await asyncio.gather(*verdicts) == ["ok"] * len(sizes)
    assert desk.queue.calls.empty()
    assert desk.counted("flotilla_flushes_total") == len(calls)


async def test_each_of_several_calls_is_repeated_by_itself(desk: Desk) -> None:
    verdicts = [desk.finish(desk.outbox(name), long_answer(2 * HALF)) for name in "ab"]
    desk.queue.failures = [RedisConnectionError("away")]
    assert [list(await desk.queue.next_step()) for _ in range(3)] == [["a"], ["a"], ["b"]]
    assert await asyncio.gather(*verdicts) == ["ok", "ok"]


async def test_an_answer_whose_call_is_done_does_not_wait_for_the_next_one(desk: Desk) -> None:
    only_first, rest = desk.queue.open, asyncio.Event()
    only_first.clear()
    first, second = (desk.finish(desk.outbox(name), long_answer(2 * HALF)) for name in "ab")
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
    long, after, late = desk.outbox("long"), desk.outbox("after"), desk.outbox("late")
    verdict = desk.finish(long, long_answer(2 * HALF))
    other = desk.finish(after, long_answer(2 * HALF))
    await turns(1)
    late.chunk(b"1")
    desk.step()
    assert list(await desk.queue.next_step()) == ["long"]
    late.chunk(b"2")
    end = desk.finish(late)
    await turns()
    desk.queue.open.set()
    assert list(await desk.queue.next_step()) == ["after", "late"]
    last = await desk.queue.next_step()
    assert await asyncio.gather(verdict, other, end) == ["ok"] * 3
    assert {name: said(e) for name, e in last.items()} == {"late": DONE}
    assert last["late"].seq == 2
    assert chunks(last["late"]) == b""


async def test_an_answer_of_a_job_that_is_dropped_meanwhile_is_not_sent(desk: Desk) -> None:
    desk.queue.open.clear()
    outboxes = [desk.outbox(name) for name in "abc"]
    verdicts = [desk.finish(outbox, long_answer(2 * HALF)) for outbox in outboxes]
    assert list(await desk.queue.next_step()) == ["a"]
    outboxes[2].dropped = True
    desk.queue.open.set()
    assert list(await desk.queue.next_step()) == ["b"]
    assert await asyncio.gather(*verdicts) == ["ok", "ok", "dropped"]
    assert desk.queue.calls.empty()


# --- what goes wrong ---

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
    outbox = desk.outbox()
    outbox.chunk(b"last")
    assert await desk.finish(outbox) == "ok"
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
        verdict = desk.finish(outbox)
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


async def test_in_one_call_ends_are_judged_and_others_are_told(desk: Desk) -> None:
    desk.queue.lost = {"a": "cancelled", "b": "expired"}
    for name in "bc":
        desk.outbox(name).chunk(b"1")
    verdicts = [desk.finish(desk.outbox(name)) for name in "ad"]
    assert set(await desk.queue.next_step()) == set("abcd")
    assert await asyncio.gather(*verdicts) == ["cancelled", "ok"]
    assert desk.lost == [("b", "expired")]


async def test_two_leases_of_one_job_are_not_judged_together(desk: Desk) -> None:
    old, new = desk.outbox("a", nonce="old"), desk.outbox("a", nonce="new")
    old.chunk(b"1")
    new.chunk(b"1")
    verdict = desk.finish(desk.outbox("a", nonce="oldest"))
    calls = [await desk.queue.next_step() for _ in range(3)]
    assert [step["a"].nonce for step in calls] == ["old", "new", "oldest"]
    assert await verdict == "ok"


async def test_shards_have_calls_of_their_own(desk: Desk) -> None:
    desk.queue.shards = 3
    desk.queue.open.clear()
    for shard in range(3):
        desk.outbox(f"a{shard}", shard).chunk(b"1")
    verdicts = [desk.finish(desk.outbox(f"b{shard}", shard)) for shard in range(3)]
    calls = [await desk.queue.next() for _ in range(3)]  # none waits for another
    assert sorted((shard, len(emissions)) for shard, emissions in calls) == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]
    assert all(e.job_id.endswith(str(shard)) for shard, emissions in calls for e in emissions)
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok"] * 3


async def test_nothing_is_sent_when_nobody_has_spoken(desk: Desk) -> None:
    for _ in range(5):
        desk.step()
        await turns()
    assert desk.queue.calls.empty()
    assert desk.counted("flotilla_engine_steps_total") == 5
    assert desk.counted("flotilla_flushes_total") == 0


async def test_what_is_on_offer_leaves_with_the_output_of_its_shard(desk: Desk) -> None:
    desk.queue.shards = 2
    desk.outbox("a", 0).chunk(b"x")
    desk.outbox("b", 1).chunk(b"x")
    desk.step()
    await desk.queue.next()
    await desk.queue.next()
    assert sorted(desk.queue.offers) == [(0, Offer("p", "w", 0, 0)), (1, Offer("p", "w", 1, 0))]
    await turns()
    assert sorted(desk.offers.heard) == [(0, 0), (1, 0)]


async def test_what_may_have_been_heard_is_not_said_again(desk: Desk) -> None:
    desk.queue.failures = [RedisConnectionError("no answer")]
    desk.outbox().chunk(b"x")
    desk.step()
    await desk.queue.next()
    await desk.queue.next()
    assert [offer for _, offer in desk.queue.offers] == [Offer("p", "w", 0, 0), None]
    assert desk.offers.heard == [(0, None)]


async def test_nothing_is_said_with_a_call_that_is_not_made(desk: Desk) -> None:
    """Who has begun to say something has to end it: the worker's next claim waits for that."""
    large = long_answer(2 * HALF)
    desk.queue.open.clear()
    first, second = desk.outbox("first"), desk.outbox("second")
    verdicts = [desk.finish(first, large), desk.finish(second, large)]  # a call each
    await desk.queue.next()
    second.dropped = True  # while the first call is on its way
    desk.queue.open.set()
    assert await asyncio.gather(*verdicts) == ["ok", "dropped"]
    assert (desk.offers.asked, desk.offers.heard) == (1, [(0, 0)])
