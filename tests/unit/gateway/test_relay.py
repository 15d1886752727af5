"""The relay's readers: the log in order, once each, whatever pub/sub loses or repeats."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.streaming import reader as module
from gateway.streaming.log_event import LogEvent, ReadMode
from gateway.streaming.reader import Reader, ReaderState
from gateway.streaming.relay import Relay
from shared.api.errors import RedisUnavailable, StreamReset
from shared.platform.metrics import GatewayMetrics
from shared.platform.redis_client import RedisConnectionError
from shared.protocol.chunk_template import DeltaEncoder, Item
from shared.protocol.frames import FrameKind, encode
from shared.protocol.job_log import Delta, Entry, Journal, Prompt, make_journal
from shared.queue.job_queue import LogPart
from tests.waiting import eventually

JOB = "job_000" + "0" * 24
BUFFER = 1000
LONG_S = 30.0
SHORT_S = 0.01
"""Nothing in these tests waits so long."""
SILENCE_S = 0.001


class Log:
    """The queue as far as a reader asks it; `ahead` is what the log holds."""

    def __init__(self) -> None:
        self.ahead: list[Entry] = []
        self.generation = 1
        self.folder = DeltaEncoder()
        self.reads: list[int] = []
        self.broken: Exception | None = None
        self.while_reading: Callable[[], object] = lambda: None

    def write(self, *chunks: bytes, end: str = "") -> None:
        for chunk in chunks:
            items = tuple(self.folder.encode([chunk]))
            self.ahead.append(Entry(len(self.ahead) + 1, items, None, ""))
        if end:
            self.ahead.append(Entry(len(self.ahead) + 1, (), None, end))

    def think(self, *texts: str) -> None:
        """Entries of a job whose answer is not streamed: nothing but a journal."""
        for text in texts:
            seq = len(self.ahead) + 1
            self.ahead.append(Entry(seq, (), make_journal([(0, 0, (seq,), text)]), ""))

    def lose(self, seq: int) -> None:
        """Redis has lost this entry, and has later ones."""
        self.ahead[seq - 1] = Entry(seq, (), None, "", lost=True)

    def frames(self, *numbers: int) -> list[tuple[int, FrameKind, Any, Journal]]:
        """The frames of these entries."""
        return [
            (seq, FrameKind.DONE, b"", None)
            if entry.end
            else (seq, FrameKind.CHUNK, entry.items, entry.journal)
            if entry.items
            else (seq, FrameKind.DELTAS, None, entry.journal)
            for seq, entry in enumerate(self.ahead, 1)
            if seq in numbers
        ]

    async def read_log(self, job_id: str, after: int) -> LogPart:
        assert job_id == JOB
        self.reads.append(after)
        found = self.ahead[after:]
        self.while_reading()
        if self.broken is not None:
            raise self.broken
        return LogPart(self.generation, found)

    async def last_entry(self, job_id: str) -> Entry | None:
        assert job_id == JOB
        if self.broken is not None:
            raise self.broken
        return self.ahead[-1] if self.ahead else None


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def relay(log: Log, registry: CollectorRegistry) -> Relay:
    queue: Any = log
    return Relay(queue, ["redis://nowhere"], "gw", GatewayMetrics(registry), BUFFER)


class Socket:
    """A sink: what a client was sent."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.full = False
        self.last = 0.0

    def write(self, data: bytes) -> bool:
        if not self.full:
            self.taken.append(data)
            self.last = asyncio.get_running_loop().time()
        return not self.full


@pytest.fixture
def socket() -> Socket:
    return Socket()


Frame = tuple[int, FrameKind, Any] | tuple[int, FrameKind, Any, Any]
"""Without its job: seq, kind, payload, and a journal if there is one."""


def publish(relay: Relay, *frames: Frame, job: str = JOB) -> None:
    """One message with these frames arrives."""
    relay._dispatch(b"".join(encode(job, *frame) for frame in frames))


def chunk(seq: int, data: bytes = b"") -> tuple[int, FrameKind, Sequence[Item]]:
    """A chunk without a quote has no envelope."""
    return seq, FrameKind.CHUNK, [data or b"%d" % seq]


def deltas(seq: int, text: str = "") -> Frame:
    """A step of a job whose answer is not streamed."""
    return seq, FrameKind.DELTAS, None, make_journal([(0, 0, (seq,), text or str(seq))])


def told(seq: int, text: str = "") -> LogEvent:
    """What comes of it."""
    return LogEvent(seq, FrameKind.DELTAS, [Delta(0, 0, (seq,), text or str(seq))])


def stream(*words: str) -> list[bytes]:
    """Chunks that have an envelope."""
    return [b"data: " + json.dumps({"text": word, "more": None}).encode() for word in words]


async def turns(count: int = 5) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)


def seqs(events: list[LogEvent]) -> list[int]:
    return [event.seq for event in events]


async def test_frames_are_handed_out_in_their_order_without_a_look_at_the_log(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    publish(relay, chunk(3))
    events = await reader.next(LONG_S)
    assert events == [LogEvent(n, FrameKind.CHUNK, b"%d" % n) for n in (1, 2, 3)]
    publish(relay, (4, FrameKind.DONE, b""))
    (end,) = await reader.next(LONG_S)
    assert end.last
    assert log.reads == []


async def test_next_waits_for_a_frame(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    publish(relay, chunk(1))
    assert seqs(await waiting) == [1]


async def test_every_reader_of_a_job_and_no_other_gets_its_frames(relay: Relay) -> None:
    mine, too = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB, ReadMode.CHUNKS)
    other = relay.open("job_001" + "0" * 24, ReadMode.CHUNKS)
    publish(relay, chunk(1))
    publish(relay, chunk(1, b"x"), job=other.job_id)
    publish(relay, chunk(1), job="job_of_nobody")
    assert await mine.next(LONG_S) == await too.next(LONG_S) == [LogEvent(1, 0, b"1")]
    assert await other.next(LONG_S) == [LogEvent(1, 0, b"x")]


async def test_a_closed_reader_is_forgotten(relay: Relay, registry: CollectorRegistry) -> None:
    one, two = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB, ReadMode.CHUNKS)
    relay.close(one)
    publish(relay, chunk(1))
    assert seqs(await two.next(LONG_S)) == [1]
    relay.close(two)
    publish(relay, chunk(2))
    assert registry.get_sample_value("flotilla_open_streams") == 0


async def test_a_gap_is_filled_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    log.write(b"1", b"2", b"3", b"4")
    publish(relay, chunk(3), chunk(4))
    events = await reader.next(LONG_S)
    assert events == [LogEvent(n, FrameKind.CHUNK, b"%d" % n) for n in (2, 3, 4)]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


async def test_what_came_before_the_gap_is_handed_out_too(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", b"3")
    publish(relay, chunk(1), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]


async def test_the_last_frame_is_lost_and_the_log_has_the_end(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", end="completed")
    publish(relay, chunk(1), (3, FrameKind.DONE, b""))
    events = await reader.next(LONG_S)
    assert seqs(events) == [1, 2, 3]
    assert [event.last for event in events] == [False, False, True]


async def test_a_repeated_frame_is_dropped(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(1), chunk(2), chunk(1), chunk(2), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]
    publish(relay, chunk(3))
    assert log.reads == []
    publish(relay, chunk(4))
    assert seqs(await reader.next(LONG_S)) == [4]


async def test_a_repeated_frame_is_no_news(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    waiting = asyncio.create_task(reader.next(LONG_S))
    for _ in range(3):
        publish(relay, chunk(1))
        await asyncio.sleep(0)
    assert not waiting.done()
    publish(relay, chunk(2))
    assert seqs(await waiting) == [2]


async def test_the_start_has_no_number_and_is_handed_out_where_it_comes(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, (0, FrameKind.STARTED, b"w-1"), chunk(1))
    assert seqs(await reader.next(LONG_S)) == [0, 1]


async def test_a_reader_goes_on_behind_a_number(relay: Relay, log: Log) -> None:
    log.write(b"1", b"2", b"3")
    reader = relay.open(JOB, ReadMode.CHUNKS, after=2)
    publish(relay, chunk(2), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [3]


async def test_a_slow_client_is_not_kept_in_memory_and_catches_up(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    parts = [b"x" * 400] * 20
    log.write(*parts)
    for seq, part in enumerate(parts, 1):
        publish(relay, chunk(seq, part))
        assert sum(len(event.payload) for event in reader._events[:-1]) <= BUFFER
    assert len(reader._events) == 3  # the one that is too much is the last
    assert seqs(await reader.next(LONG_S)) == list(range(1, 21))
    log.write(b"more")
    publish(relay, chunk(21, b"more"))
    assert seqs(await reader.next(LONG_S)) == [21]
    assert log.reads == [3]


async def test_a_frame_that_comes_while_the_log_is_read_is_handed_out_once(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    log.while_reading = lambda: publish(relay, chunk(2), chunk(3))
    reader.resync()
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]


async def test_who_falls_behind_while_the_log_is_read_reads_again(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")

    def lose_a_frame() -> None:
        log.while_reading = lambda: None
        log.write(b"2", b"3")
        publish(relay, chunk(3))

    log.while_reading = lose_a_frame
    reader.resync()
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]
    assert log.reads == [0, 1]


async def test_silence_makes_it_look_at_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    assert await reader.next(SILENCE_S) == []
    log.write(b"1")
    assert seqs(await reader.next(SILENCE_S)) == [1]
    log.write(end="completed")
    (end,) = await reader.next(SILENCE_S)
    assert (end.seq, end.kind, end.last) == (2, FrameKind.ENDED, True)
    assert log.reads == [0, 0, 1]


async def test_each_reader_is_rung_in_its_own_time(relay: Relay, log: Log) -> None:
    loop = asyncio.get_running_loop()

    async def silent_for(silence_s: float) -> float:
        began = loop.time()
        reader = relay.open(JOB, ReadMode.CHUNKS)
        assert await reader.next(silence_s) == []
        assert await reader.next(silence_s / 2) == []  # and again
        relay.close(reader)
        return loop.time() - began

    silences = (0.05, 0.02, LONG_S, 0.3, 0.02)
    waits = [asyncio.create_task(silent_for(silence_s)) for silence_s in silences]
    async with asyncio.timeout(LONG_S):
        for silence_s, wait in zip(silences, waits, strict=True):
            if silence_s < LONG_S:
                assert await wait >= 1.5 * silence_s - 0.01
    assert not waits[2].done()
    waits[2].cancel()


async def test_nobody_is_looked_after_when_all_have_gone(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(0.02))
    await turns()
    waiting.cancel()
    relay.close(reader)

    async def at_rest() -> bool:
        return relay._timer is None

    await eventually(at_rest, "the timer rests")


async def test_a_new_subscription_makes_every_reader_look(relay: Relay, log: Log) -> None:
    readers = [relay.open(JOB, ReadMode.CHUNKS) for _ in range(2)]
    log.write(b"1")
    relay._resync_server(0)  # as the subscription calls when it stands
    assert [seqs(await reader.next(LONG_S)) for reader in readers] == [[1], [1]]


async def test_a_client_that_leaves_ends_the_wait(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await asyncio.sleep(0)
    reader.client_left()
    assert await waiting == []
    assert log.reads == []


# --- what a reader wants ---


async def test_deltas_come_from_frames_and_from_the_journal(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1, "a"))
    assert await reader.next(LONG_S) == [told(1, "a")]
    log.think("a", "b")
    reader.resync()
    assert await reader.next(LONG_S) == [told(2, "b")]
    assert log.reads == [1]


async def test_deltas_are_the_same_from_a_frame_and_from_the_log(relay: Relay, log: Log) -> None:
    records: list[Delta | Prompt] = [Prompt(0, 5), Delta(0, 0, (1, 2), "ü")]
    records += [Delta(0, 1, (), ""), Delta(1, 0, (3,), "x")]
    log.ahead = [Entry(1, (), make_journal(records), "")]
    early = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, *log.frames(1))
    late = relay.open(JOB, ReadMode.DELTAS)
    late.resync()
    assert await early.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, records)]
    assert await late.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, records)]
    assert log.reads == [0]


async def test_the_journal_of_deltas_may_stand_beside_chunks(relay: Relay, log: Log) -> None:
    """An engine may stream what was not to be streamed; the shortest journal counts on chunks."""
    items: list[Item] = [b"a"]
    journal = make_journal([(0, 0, (7,), "a")], items)
    assert journal == 7
    log.ahead = [Entry(seq, tuple(items), journal, "") for seq in (1, 2)]
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, (1, FrameKind.DELTAS, items, journal))
    assert await reader.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, [Delta(0, 0, (7,), "a")])]
    reader.resync()
    assert await reader.next(LONG_S) == [LogEvent(2, FrameKind.DELTAS, [Delta(0, 0, (7,), "a")])]


async def test_a_step_without_a_record_is_counted_and_is_no_gap(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1), (2, FrameKind.DELTAS, None, None), deltas(3))
    assert await reader.next(LONG_S) == [told(1), LogEvent(2, FrameKind.DELTAS, []), told(3)]
    assert log.reads == []
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_a_gap_between_deltas_is_filled_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    log.think("1", "2", "3", "4")
    publish(relay, deltas(1), deltas(3), deltas(4))
    assert await reader.next(LONG_S) == [told(n) for n in (1, 2, 3, 4)]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


async def test_repeated_deltas_are_dropped(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1), deltas(1), deltas(2), deltas(1), deltas(2), deltas(3))
    assert await reader.next(LONG_S) == [told(n) for n in (1, 2, 3)]
    waiting = asyncio.create_task(reader.next(LONG_S))
    await turns()
    publish(relay, deltas(3))
    await turns()
    assert not waiting.done()
    publish(relay, deltas(4))
    assert await waiting == [told(4)]
    assert log.reads == []


async def test_deltas_that_come_while_the_log_is_read_are_handed_out_once(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    log.think("1", "2")
    log.while_reading = lambda: publish(relay, deltas(2), deltas(3), (4, FrameKind.ENDED, b""))
    reader.resync()
    assert await reader.next(LONG_S) == [
        told(1),
        told(2),
        told(3),
        LogEvent(4, FrameKind.ENDED, b""),
    ]
    assert log.reads == [0]


async def test_who_goes_on_with_deltas_in_the_middle_needs_no_envelopes(
    relay: Relay, log: Log
) -> None:
    log.think("1", "2", "3")
    reader = relay.open(JOB, ReadMode.DELTAS, after=2)
    assert await reader.next(SILENCE_S) == [told(3)]
    publish(relay, deltas(3), deltas(4))
    assert await reader.next(LONG_S) == [told(4)]


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_an_end_in_its_order_comes_as_it_is_without_a_look_at_the_log(
    relay: Relay, log: Log, want: ReadMode, kind: FrameKind
) -> None:
    reader = relay.open(JOB, want)
    publish(relay, chunk(1) if want is ReadMode.CHUNKS else deltas(1), (2, kind, b"r"))
    assert (await reader.next(LONG_S))[1:] == [LogEvent(2, kind, b"r")]
    assert log.reads == []


# --- what is waited for, and what comes instead ---

LAST_FRAME: Frame = (3, FrameKind.DONE, b"")
NEXT = {ReadMode.CHUNKS: chunk(2), ReadMode.DELTAS: deltas(2)}
"""What a reader that has had entry 1 is to be fed."""


def fill(log: Log, want: ReadMode, count: int) -> None:
    """Entries as `chunk` and `deltas` tell of them."""
    for seq in range(len(log.ahead) + 1, count + 1):
        if want is ReadMode.CHUNKS:
            log.write(b"%d" % seq)
        else:
            log.think(str(seq))


async def begun(relay: Relay, log: Log, want: ReadMode) -> Reader:
    """A reader that has had entry 1."""
    fill(log, want, 1)
    reader = relay.open(JOB, want)
    publish(relay, *log.frames(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    return reader


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_a_frame_for_a_reader_that_is_behind_is_read_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry, want: ReadMode
) -> None:
    reader = await begun(relay, log, want)
    reader.resync()
    publish(relay, NEXT[want])  # though it is the next one
    assert reader._events == []
    fill(log, want, 2)
    assert seqs(await reader.next(LONG_S)) == [2]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_a_frame_wakes_a_reader_that_is_behind(
    relay: Relay, log: Log, want: ReadMode
) -> None:
    reader = await begun(relay, log, want)
    log.broken = RedisConnectionError("away")
    reader.resync()
    waiting = asyncio.create_task(reader.next(LONG_S))
    await turns()
    assert not waiting.done()
    log.broken = None
    fill(log, want, 2)
    publish(relay, LAST_FRAME)
    assert seqs(await waiting) == [2]


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_frames_wait_in_their_order_while_the_log_is_read(
    relay: Relay, log: Log, want: ReadMode
) -> None:
    reader = await begun(relay, log, want)
    fed: list[list[LogEvent]] = []

    def go_on() -> None:
        publish(relay, NEXT[want])
        publish(relay, LAST_FRAME)
        fed.append(list(reader._events))

    log.while_reading = go_on
    reader.resync()
    events = await reader.next(LONG_S)
    assert fed == [[]]  # nothing overtakes the log
    assert [(event.seq, event.last) for event in events] == [(2, False), (3, True)]
    assert log.reads == [1]


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_an_end_that_comes_too_soon_is_a_gap(
    relay: Relay, log: Log, registry: CollectorRegistry, want: ReadMode
) -> None:
    reader = await begun(relay, log, want)
    fill(log, want, 2)
    log.write(end="completed")
    publish(relay, LAST_FRAME)
    events = await reader.next(LONG_S)
    assert [(event.seq, event.last) for event in events] == [(2, False), (3, True)]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_the_start_is_no_step(
    relay: Relay, log: Log, registry: CollectorRegistry, want: ReadMode
) -> None:
    reader = await begun(relay, log, want)
    started: Frame = (0, FrameKind.STARTED, b"w-2")
    publish(relay, started, NEXT[want])
    events = await reader.next(LONG_S)
    assert [(event.seq, event.kind == FrameKind.STARTED) for event in events] == [
        (0, True),
        (2, False),
    ]
    reader.resync()
    publish(relay, started)  # it is told at once, the log does not have it
    assert reader._events == [LogEvent(0, FrameKind.STARTED, b"w-2")]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_the_start_is_told_though_the_log_is_being_read(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    log.think("1")
    log.while_reading = lambda: publish(relay, (0, FrameKind.STARTED, b"w"))
    reader.resync()
    assert {event.seq for event in await reader.next(LONG_S)} == {0, 1}


@pytest.mark.parametrize(
    "frame", [chunk(1), deltas(1), (0, FrameKind.STARTED, b"w"), chunk(7), deltas(7)]
)
async def test_nothing_but_the_end_wakes_who_wants_the_end(
    relay: Relay, log: Log, registry: CollectorRegistry, frame: Frame
) -> None:
    reader = relay.open(JOB, ReadMode.END)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await turns()
    publish(relay, frame)
    await turns()
    assert not waiting.done()
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0
    publish(relay, (9, FrameKind.ENDED, b""))
    assert await waiting == [LogEvent(9, FrameKind.ENDED, b"")]


async def test_the_end_is_taken_though_the_reader_is_behind(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.END)
    reader.resync()
    publish(relay, (9, FrameKind.RESULT, b"r"))
    assert await reader.next(LONG_S) == [LogEvent(9, FrameKind.RESULT, b"r")]


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
async def test_who_wants_the_end_takes_it_whatever_its_number(
    relay: Relay, log: Log, kind: FrameKind
) -> None:
    reader = relay.open(JOB, ReadMode.END)
    publish(relay, deltas(2), (9, kind, b"r"))
    assert await reader.next(LONG_S) == [LogEvent(9, kind, b"r")]
    assert log.reads == []


async def test_who_wants_the_end_finds_it_in_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.END)
    log.write(b"1", b"2")
    assert await reader.next(SILENCE_S) == []
    log.write(end="failed")
    assert await reader.next(SILENCE_S) == [LogEvent(3, FrameKind.ENDED, b"")]
    assert log.reads == []


# --- what goes wrong ---


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param([], id="the log is gone"),
        pytest.param([Entry(1, (b"1",), None, "")], id="the log has gone back"),
        pytest.param(
            [Entry(seq, (), None, "", lost=True) for seq in (1, 2, 3)]
            + [Entry(4, (b"4",), None, "")],
            id="the log has a hole",
        ),
    ],
)
async def test_a_log_that_does_not_hold_what_was_handed_out_ends_the_stream(
    relay: Relay, log: Log, lost: list[Entry]
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    await reader.next(LONG_S)
    log.ahead = lost
    with pytest.raises(StreamReset):
        await reader.next(SILENCE_S)


async def test_no_news_in_a_log_that_is_there_is_no_loss(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    reader.resync()
    await reader.next(LONG_S)
    assert await reader.next(SILENCE_S) == []


def outage_grows(reader: Reader, seconds: float) -> None:
    """As if Redis had been away for so much longer."""
    assert reader._redis_failing_since is not None
    reader._redis_failing_since -= seconds


@pytest.mark.parametrize("want", ReadMode)
@pytest.mark.parametrize("error", [RedisConnectionError("away"), OSError("away")])
async def test_an_outage_becomes_an_error_only_after_a_while(
    relay: Relay, log: Log, want: ReadMode, error: Exception
) -> None:
    reader = relay.open(JOB, want)
    log.broken = error
    assert await reader.next(SILENCE_S) == []
    outage_grows(reader, module._REDIS_PATIENCE_S - 10)
    assert await reader.next(SILENCE_S) == []
    outage_grows(reader, 11)
    with pytest.raises(RedisUnavailable):
        await reader.next(SILENCE_S)


async def test_an_outage_that_ended_does_not_count_for_the_next_one(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    for _ in range(3):
        log.broken = RedisConnectionError("away")
        assert await reader.next(SILENCE_S) == []
        outage_grows(reader, module._REDIS_PATIENCE_S - 10)
        log.broken = None
        log.write(b"x")
        assert len(await reader.next(SILENCE_S)) == 1


async def test_what_could_not_be_read_is_read_at_the_next_look(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    log.broken = RedisConnectionError("away")
    reader.resync()
    assert await reader.next(SHORT_S) == []
    log.broken = None
    reader.resync()
    assert seqs(await reader.next(LONG_S)) == [1, 2]


async def test_frames_that_come_in_an_outage_are_not_lost(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.broken = RedisConnectionError("away")
    publish(relay, chunk(1), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1]
    log.write(b"1", b"2", b"3", b"4")
    log.broken = None
    publish(relay, chunk(4))  # which makes it look again: there is no silence
    async with asyncio.timeout(LONG_S):
        assert seqs(await reader.next(10 * LONG_S)) == [2, 3, 4]


async def test_whatever_is_lost_repeated_or_late_the_client_gets_the_log(
    relay: Relay, log: Log
) -> None:
    for lost in range(1 << 6):
        log.ahead = []
        reader: Reader = relay.open(JOB, ReadMode.CHUNKS)
        got: list[int] = []
        for seq in range(1, 7):
            log.write(b"%d" % seq)
            if not lost >> (seq - 1) & 1:
                publish(relay, chunk(seq), chunk(max(1, seq - 2)))
                got += seqs(await reader.next(LONG_S))
        log.write(end="completed")
        reader.resync()
        got += seqs(await reader.next(LONG_S))
        assert got == list(range(1, 8)), f"lost: {lost:06b}"
        relay.close(reader)


async def test_a_hole_in_the_log_ends_the_stream(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", b"3", b"4")
    log.lose(3)
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(5)


async def test_a_hole_behind_what_was_handed_out_ends_the_stream(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", b"3", end="completed")
    publish(relay, *log.frames(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    log.lose(2)
    publish(relay, *log.frames(3, 4))
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)


async def test_who_starts_behind_a_hole_can_not_know_the_envelopes(relay: Relay, log: Log) -> None:
    log.write(*stream("a", "b", "c", "d"))
    log.lose(2)
    reader = relay.open(JOB, ReadMode.CHUNKS, after=3)
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)


async def test_who_wants_the_end_finds_it_behind_a_hole(relay: Relay, log: Log) -> None:
    log.write(b"1", b"2", end="completed")
    log.lose(2)
    reader = relay.open(JOB, ReadMode.END)
    assert await reader.next(SILENCE_S) == [LogEvent(3, FrameKind.ENDED, b"")]


FOREIGN = [
    b"\xc1 nonsense",
    b"\x01",
    b"\x93\x01\x02\x03",
    encode(JOB, 1, FrameKind.CHUNK, [b"1"])[:-1],
    b"\x92\xbf" + JOB.encode() + b"\x01",  # ours, and not a whole frame
    b"\x97\xbf" + JOB.encode() + b"\x01\x01\x00\xc0\xc0\xc0",
    b"\x90",
    b"\x81\x01\x02",
    b"\xc0",
    b"\xa0",
]


@pytest.mark.parametrize("message", FOREIGN)
async def test_a_message_that_is_no_frame_sends_readers_to_the_log(
    relay: Relay, log: Log, message: bytes
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")
    relay._dispatch(message)
    assert [event.payload for event in await reader.next(5)] == [b"1"]


# Msgpack, but no folded chunks.
MALFORMED: list[Any] = [
    b"bytes",
    7,
    [7],
    [None],
    [[1]],
    [[1, 2, 3]],
    [[b"a", b"b"]],
    {b"a": b"b"},
    [[0, 0], b"z" * 200, [100, 100], 7],  # after which nothing is as it was
]


@pytest.mark.parametrize("payload", MALFORMED)
async def test_a_chunk_that_can_not_be_unfolded_is_read_from_the_log(
    relay: Relay, log: Log, payload: Any
) -> None:
    reader, other = (
        relay.open(JOB, ReadMode.CHUNKS),
        relay.open("job_001" + "0" * 24, ReadMode.CHUNKS),
    )
    chunks = stream("a", "b", "c", "d", "e")
    log.write(*chunks)
    publish(relay, *log.frames(1, 2), (3, FrameKind.CHUNK, payload))
    publish(relay, chunk(1), job=other.job_id)
    events = await reader.next(LONG_S)
    assert [event.payload for event in events] == chunks
    assert log.reads == [0]  # from the start: half of it may have been unfolded
    log.write(*stream("f"))
    publish(relay, *log.frames(6))
    assert [event.payload for event in await reader.next(LONG_S)] == stream("f")
    assert seqs(await other.next(LONG_S)) == [1]
    assert log.reads == [0]


@pytest.mark.parametrize("payload", MALFORMED)
async def test_a_malformed_chunk_that_comes_while_the_log_is_read_is_read_from_the_log(
    relay: Relay, log: Log, payload: Any
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks[:2])

    def disturb() -> None:
        log.while_reading = lambda: None
        log.write(*chunks[2:])
        publish(relay, (3, FrameKind.CHUNK, payload), *log.frames(4))

    log.while_reading = disturb
    reader.resync()
    assert [event.payload for event in await reader.next(LONG_S)] == chunks
    assert log.reads == [0, 0]


@pytest.mark.parametrize("journal", [7, [7], [[1]], [[1, 2, 3]], [[0, 0, 1, 2]], [None]])
async def test_deltas_that_can_not_be_read_are_read_from_the_log(
    relay: Relay, log: Log, journal: Any
) -> None:
    reader, other = (
        relay.open(JOB, ReadMode.DELTAS),
        relay.open("job_001" + "0" * 24, ReadMode.CHUNKS),
    )
    log.think("1", "2", "3")
    publish(relay, deltas(1), (2, FrameKind.DELTAS, None, journal))
    publish(relay, chunk(1), job=other.job_id)
    assert await reader.next(LONG_S) == [told(1), told(2), told(3)]
    publish(relay, deltas(4))
    assert await reader.next(LONG_S) == [told(4)]
    assert seqs(await other.next(LONG_S)) == [1]


async def test_a_step_without_a_chunk_is_counted_and_is_no_gap(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), (2, FrameKind.CHUNK, None), chunk(3))
    events = await reader.next(LONG_S)
    assert b"".join(event.payload for event in events) == b"13"
    assert seqs(events) == [1, 2, 3]
    assert log.reads == []
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


# --- envelopes ---


async def test_chunks_get_their_envelopes_back(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e", "f")
    log.write(*chunks, end="completed")
    assert log.ahead[4].items == (b"e",)
    publish(relay, *log.frames(1, 2))
    publish(relay, *log.frames(3, 5, 6))  # 4 is lost
    events = await reader.next(LONG_S)
    assert [event.payload for event in events] == [*chunks, b""]
    assert log.reads == [3]


async def test_a_step_of_several_chunks_is_one_piece(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    folder, chunks = DeltaEncoder(), [b'"%d"' % n for n in range(5)]
    for seq, step in enumerate([chunks[:2], chunks[2:]], 1):
        publish(relay, (seq, FrameKind.CHUNK, folder.encode(step)))
    events = await reader.next(LONG_S)
    assert [event.payload for event in events] == [b"".join(chunks[:2]), b"".join(chunks[2:])]


async def test_two_readers_of_a_job_do_not_share_an_envelope(relay: Relay, log: Log) -> None:
    early = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks)
    publish(relay, *log.frames(1, 2, 3))
    late = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, *log.frames(4))
    for reader in (early, late):
        assert [event.payload for event in await reader.next(LONG_S)] == chunks


@pytest.mark.parametrize("looks_first", [True, False])
async def test_who_goes_on_in_the_middle_learns_the_envelopes_from_the_log(
    relay: Relay, log: Log, looks_first: bool
) -> None:
    chunks = stream("a", "b", "c", "d", "e", "f")
    log.write(*chunks[:5])
    reader = relay.open(JOB, ReadMode.CHUNKS, after=3)
    if looks_first:
        reader.resync()
    else:
        publish(relay, *log.frames(4))
    events = await reader.next(LONG_S)
    assert [(event.seq, event.payload) for event in events] == [(4, chunks[3]), (5, chunks[4])]
    assert log.reads == [0]
    log.write(chunks[5])
    publish(relay, *log.frames(6))
    assert [event.payload for event in await reader.next(LONG_S)] == [chunks[5]]
    assert log.reads == [0]


async def test_who_goes_on_behind_all_there_is_waits_for_more(relay: Relay, log: Log) -> None:
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks[:3])
    reader = relay.open(JOB, ReadMode.CHUNKS, after=3)
    assert await reader.next(SILENCE_S) == []
    log.write(chunks[3])
    publish(relay, *log.frames(4))
    assert [event.payload for event in await reader.next(LONG_S)] == [chunks[3]]
    assert log.reads == [0]


async def test_who_goes_on_in_the_middle_in_an_outage_learns_them_later(
    relay: Relay, log: Log
) -> None:
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks)
    log.broken = RedisConnectionError("away")
    reader = relay.open(JOB, ReadMode.CHUNKS, after=2)
    assert await reader.next(SILENCE_S) == []
    publish(relay, *log.frames(3))
    log.broken = None
    reader.resync()
    assert [event.payload for event in await reader.next(LONG_S)] == chunks[2:]


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_who_claims_to_have_more_than_there_ever_was_is_told(
    relay: Relay, log: Log, want: ReadMode
) -> None:
    log.write(*stream("a", "b"))
    reader = relay.open(JOB, want, after=3)
    with pytest.raises(StreamReset):
        await reader.next(SILENCE_S)


# --- straight to the client ---


async def test_chunks_that_come_in_order_go_straight_to_the_sink(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, *log.frames(1))
    assert socket.taken == chunks[:1]  # now, not in a task's turn
    publish(relay, *log.frames(2, 3))
    await turns()
    publish(relay, *log.frames(4))
    assert socket.taken == chunks
    await turns()
    assert not waiting.done()
    publish(relay, *log.frames(5))
    assert await waiting == [LogEvent(5, FrameKind.DONE, b"")]
    assert log.reads == []


async def test_the_last_chunk_is_handed_out_with_the_end(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, chunk(1))
    publish(relay, (2, FrameKind.LAST_CHUNK, [b"2"]), (3, FrameKind.DONE, b""))
    assert await waiting == [LogEvent(2, FrameKind.CHUNK, b"2"), LogEvent(3, FrameKind.DONE, b"")]
    assert (socket.taken, log.reads) == ([b"1"], [])


@pytest.mark.parametrize("want", [ReadMode.DELTAS, ReadMode.END])
async def test_who_does_not_want_chunks_takes_the_last_one_as_any(
    relay: Relay, want: ReadMode
) -> None:
    reader = relay.open(JOB, want)
    publish(relay, (1, FrameKind.LAST_CHUNK, [b"x"], 7), (2, FrameKind.DONE, b""))
    *before, end = await reader.next(LONG_S)
    delta = LogEvent(1, FrameKind.DELTAS, [Delta(0, 0, (7,), "x")])
    assert before == ([delta] if want is ReadMode.DELTAS else [])
    assert end == LogEvent(2, FrameKind.DONE, b"")


async def test_a_last_chunk_behind_a_gap_is_read_from_the_log(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, *log.frames(1))
    publish(relay, (3, FrameKind.LAST_CHUNK, [b"?"]), *log.frames(4))
    events = await waiting
    assert b"".join(event.payload for event in events[:-1]) == b"".join(chunks[1:])
    assert (socket.taken, events[-1].last, log.reads != []) == (chunks[:1], True, True)


async def test_the_sink_is_used_only_while_next_waits(relay: Relay, socket: Socket) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S, socket)) == [1]  # it was here before
    publish(relay, chunk(2))
    assert socket.taken == []
    assert seqs(await reader.next(LONG_S, socket)) == [2]
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    reader.client_left()
    assert await waiting == []
    publish(relay, chunk(3))
    assert socket.taken == []


async def test_a_client_that_has_left_is_sent_nothing(relay: Relay, socket: Socket) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    reader.client_left()
    publish(relay, chunk(1))  # before the task has its turn
    await waiting
    assert socket.taken == []


async def test_a_wait_that_is_cancelled_gives_the_sink_back(relay: Relay, socket: Socket) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    publish(relay, chunk(1))
    assert socket.taken == []
    assert seqs(await reader.next(LONG_S)) == [1]


async def test_a_sink_that_is_full_has_taken_nothing_and_the_order_is_kept(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, chunk(1))
    socket.full = True
    publish(relay, chunk(2))
    socket.full = False
    publish(relay, chunk(3))  # 2 has not been handed out yet
    assert socket.taken == [b"1"]
    assert [event.payload for event in await waiting] == [b"2", b"3"]
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, chunk(4))
    assert socket.taken == [b"1", b"4"]
    publish(relay, (5, FrameKind.DONE, b""))
    assert seqs(await waiting) == [5]
    assert log.reads == []


async def test_nothing_overtakes_what_the_task_has_not_taken_yet(
    relay: Relay, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, (0, FrameKind.STARTED, b"w"), chunk(1))
    assert socket.taken == []
    assert seqs(await waiting) == [0, 1]


async def test_gaps_are_counted_for_each_client_that_was_sent_something(
    relay: Relay, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {f"job_000{n:024}": last_write_at for n, last_write_at in enumerate((10.0, 9.5, 10.0))}
    sockets = [Socket() for _ in told]
    sockets[2].full = True  # its own task will tell it, and count that
    waiting = []
    for (job, last_write_at), socket in zip(told.items(), sockets, strict=True):
        reader = relay.open(job, ReadMode.CHUNKS)
        reader.last_write_at = last_write_at
        waiting.append(asyncio.create_task(reader.next(LONG_S, socket)))
    await turns()
    for seq, now in enumerate((10.25, 10.75), 1):
        monkeypatch.setattr("gateway.streaming.relay.monotonic", lambda now=now: now)
        relay._dispatch(b"".join(encode(job, *chunk(seq)) for job in told))
    for task in waiting:
        task.cancel()
    count = registry.get_sample_value("flotilla_inter_token_seconds_count")
    total = registry.get_sample_value("flotilla_inter_token_seconds_sum")
    assert (count, total) == (4, 0.25 + 0.5 + 0.75 + 0.5)


async def test_silence_is_counted_from_the_last_chunk_the_sink_took(
    relay: Relay, log: Log, socket: Socket
) -> None:
    loop, silence_s = asyncio.get_running_loop(), 0.05
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    for seq in (1, 2):
        loop.call_later(seq * silence_s * 0.6, publish, relay, chunk(seq))
    assert await reader.next(silence_s, socket) == []
    assert socket.taken == [b"1", b"2"]
    assert loop.time() - socket.last >= silence_s


async def test_silence_behind_the_sink_makes_it_look_at_the_log(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(SILENCE_S, socket))
    await turns()
    publish(relay, *log.frames(1, 2))
    assert socket.taken == chunks[:2]
    assert [event.payload for event in await waiting] == [chunks[2], b""]
    assert log.reads == [2]


async def test_a_gap_ends_the_use_of_the_sink_and_the_log_goes_on(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e")
    log.write(*chunks[:4])
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, *log.frames(1))
    publish(relay, *log.frames(3, 4))
    assert socket.taken == chunks[:1]
    assert [event.payload for event in await waiting] == chunks[1:4]
    assert log.reads == [1]
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    log.write(chunks[4])
    publish(relay, *log.frames(4, 5))
    assert socket.taken == [chunks[0], chunks[4]]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_repeated_chunk_does_not_reach_the_sink(relay: Relay, socket: Socket) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, chunk(1), chunk(1), chunk(2), chunk(1), chunk(3))
    assert socket.taken == [b"1", b"2", b"3"]
    publish(relay, (4, FrameKind.DONE, b""))
    assert seqs(await waiting) == [4]


async def test_chunks_that_come_while_the_log_is_read_wait_behind_it(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e")
    log.write(*chunks)
    whole, log.ahead = log.ahead, log.ahead[:2]

    def go_on() -> None:
        log.ahead = whole
        publish(relay, *log.frames(2, 3))
        publish(relay, *log.frames(4))

    log.while_reading = go_on
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    reader.resync()
    events = await waiting
    assert [event.payload for event in events] == chunks[:4]
    assert log.reads == [0]
    assert socket.taken == []
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, *log.frames(5))
    assert socket.taken == chunks[4:]
    reader.client_left()
    await waiting


async def test_the_end_that_comes_while_the_log_is_read_is_not_lost(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(*stream("a", "b"))
    log.while_reading = lambda: publish(relay, (3, FrameKind.DONE, b""))
    reader.resync()
    events = await reader.next(LONG_S)
    assert [(event.seq, event.kind) for event in events[1:]] == [
        (2, FrameKind.CHUNK),
        (3, FrameKind.DONE),
    ]
    assert log.reads == [0]


async def test_a_client_that_does_not_read_is_not_kept_in_memory_and_catches_up(
    relay: Relay, log: Log, socket: Socket
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream(*(f"{i:0400}" for i in range(20)))
    log.write(*chunks)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, *log.frames(1, 2, 3))
    socket.full = True
    for seq in range(4, 20):
        publish(relay, *log.frames(seq))
        assert sum(len(event.payload) for event in reader._events[:-1]) <= BUFFER
    socket.full = False
    assert [event.payload for event in await waiting] == chunks[3:]
    assert socket.taken == chunks[:3]
    assert len(log.reads) == 1
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    log.write(*stream("more"))
    publish(relay, *log.frames(20, 21))
    assert socket.taken[3:] == stream("more")
    reader.client_left()
    await waiting


async def test_a_step_without_a_chunk_writes_nothing(relay: Relay, socket: Socket) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, chunk(1), (2, FrameKind.CHUNK, None))
    assert socket.taken == [b"1"]
    publish(relay, chunk(3))
    assert b"".join(event.payload for event in await waiting) == b"3"


@pytest.mark.parametrize("want", [ReadMode.DELTAS, ReadMode.END])
async def test_the_sink_takes_chunks_only(relay: Relay, socket: Socket, want: ReadMode) -> None:
    reader = relay.open(JOB, want)
    waiting = asyncio.create_task(reader.next(LONG_S, socket))
    await turns()
    publish(relay, deltas(1), (2, FrameKind.RESULT, b"r"))
    assert (await waiting)[-1] == LogEvent(2, FrameKind.RESULT, b"r")
    assert socket.taken == []


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_the_client_gets_every_byte_once_and_in_order(
    relay: Relay, log: Log, socket: Socket, seed: int
) -> None:
    chance = random.Random(seed)
    chunks = stream(*("x" * chance.randint(0, 30) for _ in range(40)))
    kept = chance.randint(0, 20)
    log.write(*chunks[:kept])
    reader = relay.open(JOB, ReadMode.CHUNKS, after=kept)

    async def read() -> None:
        while True:
            events = await reader.next(LONG_S, socket)
            await turns(chance.randint(0, 3))  # the socket has no room
            socket.taken += [event.payload for event in events if not event.last]
            if events and events[-1].last:
                return

    reading = asyncio.create_task(read())
    published: list[int] = []
    for number, data in enumerate(chunks[kept:], kept + 1):
        log.write(data)
        published.append(number)
        socket.full = chance.random() < 0.3
        if chance.random() < 0.8:
            publish(relay, *log.frames(*published))
            published = [] if chance.random() < 0.8 else [number]  # sent again
        elif chance.random() < 0.3:
            published = []  # lost
        if chance.random() < 0.1:
            log.while_reading = lambda: reader.resync() if chance.random() < 0.5 else None
            relay._resync_server(0)
        await turns(chance.randint(0, 2))
    log.write(end="completed")
    reader.resync()
    async with asyncio.timeout(LONG_S):
        await reading
    assert b"".join(socket.taken) == b"".join(chunks[kept:])


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_all_deltas_come_once_and_in_order(
    relay: Relay, log: Log, seed: int
) -> None:
    chance = random.Random(seed)
    kept, count = chance.randint(0, 20), 40
    fill(log, ReadMode.DELTAS, kept)
    reader = relay.open(JOB, ReadMode.DELTAS, after=kept)
    got: list[LogEvent] = []

    async def read() -> None:
        while not got or not got[-1].last:
            got.extend(await reader.next(LONG_S))
            await turns(chance.randint(0, 3))

    reading = asyncio.create_task(read())
    published: list[int] = []
    for number in range(kept + 1, count + 1):
        fill(log, ReadMode.DELTAS, number)
        published.append(number)
        if chance.random() < 0.8:
            publish(relay, *log.frames(*published))
            published = [] if chance.random() < 0.8 else [number]  # sent again
        elif chance.random() < 0.3:
            published = []  # lost
        if chance.random() < 0.1:
            log.while_reading = lambda: reader.resync() if chance.random() < 0.5 else None
            relay._resync_server(0)
        await turns(chance.randint(0, 2))
    log.write(end="completed")
    reader.resync()
    async with asyncio.timeout(LONG_S):
        await reading
    assert got[:-1] == [told(seq) for seq in range(kept + 1, count + 1)]


# --- attempts, and the count of tokens ---


def of_attempt(generation: int, *frames: Frame) -> bytes:
    return b"".join(encode(JOB, *frame, generation=generation) for frame in frames)


@pytest.mark.parametrize("want", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_two_attempts_are_never_mixed(relay: Relay, log: Log, want: ReadMode) -> None:
    """Whatever made the queue start a job anew of which a client has got something."""
    kind = FrameKind.CHUNK if want is ReadMode.CHUNKS else FrameKind.DELTAS
    journal = make_journal([(0, 0, (5,), "x")])
    reader = relay.open(JOB, want)
    relay._dispatch(of_attempt(1, (1, kind, None, journal), (2, kind, None, journal)))
    assert len(await reader.next(5)) == 2
    relay._dispatch(of_attempt(2, (3, kind, None, journal)))
    with pytest.raises(StreamReset):
        await reader.next(5)


async def test_an_attempt_that_has_shown_nothing_is_replaced(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    relay._dispatch(of_attempt(2, (1, FrameKind.CHUNK, [b"new"], 5)))
    relay._dispatch(of_attempt(1, (2, FrameKind.CHUNK, [b"old"], 6)))
    relay._dispatch(of_attempt(2, (2, FrameKind.CHUNK, [b"er"], 6)))
    assert b"".join(event.payload for event in await reader.next(5)) == b"newer"


async def test_the_log_of_another_attempt_ends_the_answer(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    assert len(await reader.next(5)) == 2
    log.generation = 2
    log.write(b"a", b"b", b"c")
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(5)


@pytest.mark.parametrize("from_log", [False, True])
@pytest.mark.parametrize(("generated", "whole"), [(3, True), (2, False), (4, False), (None, True)])
async def test_an_answer_with_another_number_of_tokens_ends_in_an_error(
    relay: Relay, log: Log, from_log: bool, generated: int | None, whole: bool
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    journals: list[Journal] = [5, ((0, 0, (6, 7), "x"),)]
    for seq, journal in enumerate(journals, 1):
        log.ahead.append(Entry(seq, (b"%d" % seq,), journal, ""))
    log.ahead.append(Entry(3, (), None, "completed", tokens=generated))
    if from_log:
        reader.resync()
    else:
        publish(relay, *log.frames(1, 2), (3, FrameKind.DONE, b"", generated))
    if whole:
        assert [event.seq for event in await reader.next(5)] == [1, 2, 3]
    else:
        with pytest.raises(StreamReset):
            await reader.next(5)


async def test_who_resumes_in_the_middle_has_no_count_to_compare(relay: Relay, log: Log) -> None:
    log.ahead = [Entry(1, (b"1",), 5, ""), Entry(2, (b"2",), 6, "")]
    log.ahead.append(Entry(3, (), None, "completed", tokens=2))
    reader = relay.open(JOB, ReadMode.CHUNKS, after=1)
    reader.resync()
    assert [event.seq for event in await reader.next(5)] == [2, 3]


async def test_an_end_that_stands_where_a_chunk_was_is_an_error(relay: Relay, log: Log) -> None:
    """A chunk was published that the log does not hold: its client waited for ever."""
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    await reader.next(5)
    log.write(b"1", end="failed")
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(5)


# --- jobs that are gone or have ended, and no frame told of it ---


async def test_readers_of_jobs_that_are_gone_are_told(relay: Relay, log: Log) -> None:
    gone, ended = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB[:-1] + "1", ReadMode.CHUNKS)
    relay._on_ended({gone.job_id: "gone"})
    with pytest.raises(StreamReset):
        await gone.next(5)
    log.write(end="failed")
    relay._on_ended({ended.job_id: "failed"})
    assert ended._state is ReaderState.BEHIND


async def test_a_job_that_is_not_queued_yet_is_not_looked_for(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    reader.queued = asyncio.get_running_loop().create_future()
    assert not reader.awaits_end
    reader.queued.set_result(None)
    assert reader.awaits_end
