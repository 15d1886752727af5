"""A reader that lacks frames reads the log; frames that arrive meanwhile wait."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.log_event import LogEvent, ReadMode
from gateway.core.relay import Relay
from shared.job.errors import StreamReset
from shared.job.frames import FrameKind
from shared.store.interface import StoreUnavailable
from tests.unit.gateway.reader_support import (
    BUFFER,
    JOB,
    LAST_FRAME,
    LONG_S,
    NEXT,
    SILENCE_S,
    Frame,
    Log,
    begin_reading,
    chunk,
    delta_event,
    deltas,
    fill,
    publish,
    seqs,
    stream,
    turns,
)


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


async def test_a_lost_frame_before_the_end_is_read_from_the_log_with_the_end(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", end="completed")
    publish(relay, chunk(1), (3, FrameKind.DONE, b""))
    events = await reader.next(LONG_S)
    assert seqs(events) == [1, 2, 3]
    assert [event.last for event in events] == [False, False, True]


async def test_a_frame_that_arrives_during_a_replay_is_delivered_once(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    log.while_reading = lambda: publish(relay, chunk(2), chunk(3))
    reader.resync()
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]


@pytest.mark.parametrize("stale", [False, True])
async def test_few_frames_are_kept_while_redis_is_slow(relay: Relay, log: Log, stale: bool) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")

    def slow() -> None:
        log.while_reading = lambda: None
        if stale:
            reader.resync()
        for seq in range(2, 3000):
            data = b"%d" % seq * 10
            log.write(data)
            publish(relay, chunk(seq, data))
            assert len(b"".join(frame[5][0] for frame in reader._unread)) <= (
                0 if stale else BUFFER
            )

    log.while_reading = slow
    reader.resync()
    assert seqs(await reader.next(LONG_S)) == [*range(1, 3000)]
    publish(relay, chunk(3000))
    assert seqs(await reader.next(LONG_S)) == [3000]
    assert log.reads == [0, 1]


async def test_a_frame_lost_during_a_replay_causes_another_replay(relay: Relay, log: Log) -> None:
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


async def test_silence_makes_the_reader_read_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    assert await reader.next(SILENCE_S) == []
    log.write(b"1")
    assert seqs(await reader.next(SILENCE_S)) == [1]
    log.write(end="completed")
    (end,) = await reader.next(SILENCE_S)
    assert (end.seq, end.kind, end.last) == (2, FrameKind.ENDED, True)
    assert log.reads == [0, 0, 1]


async def test_a_gap_between_deltas_is_filled_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    log.write_deltas("1", "2", "3", "4")
    publish(relay, deltas(1), deltas(3), deltas(4))
    assert await reader.next(LONG_S) == [delta_event(n) for n in (1, 2, 3, 4)]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_a_frame_for_a_reader_that_is_behind_is_taken_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry, mode: ReadMode
) -> None:
    reader = await begin_reading(relay, log, mode)
    reader.resync()
    publish(relay, NEXT[mode])  # though it is the next one
    assert reader._events == []
    fill(log, mode, 2)
    assert seqs(await reader.next(LONG_S)) == [2]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_a_frame_wakes_a_reader_that_is_behind(
    relay: Relay, log: Log, mode: ReadMode
) -> None:
    reader = await begin_reading(relay, log, mode)
    log.broken = StoreUnavailable("away")
    reader.resync()
    waiting = asyncio.create_task(reader.next(LONG_S))
    await turns()
    assert not waiting.done()
    log.broken = None
    fill(log, mode, 2)
    publish(relay, LAST_FRAME)
    assert seqs(await waiting) == [2]


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_frames_wait_in_order_during_a_replay(relay: Relay, log: Log, mode: ReadMode) -> None:
    reader = await begin_reading(relay, log, mode)
    fed: list[list[LogEvent]] = []

    def go_on() -> None:
        publish(relay, NEXT[mode])
        publish(relay, LAST_FRAME)
        fed.append(list(reader._events))

    log.while_reading = go_on
    reader.resync()
    events = await reader.next(LONG_S)
    assert fed == [[]]  # nothing overtakes the log
    assert [(event.seq, event.last) for event in events] == [(2, False), (3, True)]
    assert log.reads == [1]


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_an_end_that_arrives_too_soon_is_a_gap(
    relay: Relay, log: Log, registry: CollectorRegistry, mode: ReadMode
) -> None:
    reader = await begin_reading(relay, log, mode)
    fill(log, mode, 2)
    log.write(end="completed")
    publish(relay, LAST_FRAME)
    events = await reader.next(LONG_S)
    assert [(event.seq, event.last) for event in events] == [(2, False), (3, True)]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


async def test_the_start_is_delivered_during_a_replay(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    log.write_deltas("1")
    log.while_reading = lambda: publish(relay, (0, FrameKind.STARTED, b"w"))
    reader.resync()
    assert {event.seq for event in await reader.next(LONG_S)} == {0, 1}


@pytest.mark.parametrize(
    "frame", [chunk(1), deltas(1), (0, FrameKind.STARTED, b"w"), chunk(7), deltas(7)]
)
async def test_a_reader_of_the_end_is_woken_by_nothing_else(
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


async def test_a_reader_of_the_end_takes_it_from_a_frame_though_it_is_behind(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.END)
    reader.resync()
    publish(relay, (9, FrameKind.RESULT, b"r"))
    assert await reader.next(LONG_S) == [LogEvent(9, FrameKind.RESULT, b"r")]


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
async def test_a_reader_of_the_end_takes_it_with_any_number(
    relay: Relay, log: Log, kind: FrameKind
) -> None:
    reader = relay.open(JOB, ReadMode.END)
    publish(relay, deltas(2), (9, kind, b"r"))
    assert await reader.next(LONG_S) == [LogEvent(9, kind, b"r")]
    assert log.reads == []


async def test_a_reader_of_the_end_finds_it_in_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.END)
    log.write(b"1", b"2")
    assert await reader.next(SILENCE_S) == []
    log.write(end="failed")
    assert await reader.next(SILENCE_S) == [LogEvent(3, FrameKind.ENDED, b"")]
    assert log.reads == []


@pytest.mark.parametrize("looks_first", [True, False])
async def test_a_reader_from_the_middle_gets_the_template_from_the_log(
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


async def test_a_reader_from_the_end_of_the_log_waits_for_more(relay: Relay, log: Log) -> None:
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks[:3])
    reader = relay.open(JOB, ReadMode.CHUNKS, after=3)
    assert await reader.next(SILENCE_S) == []
    log.write(chunks[3])
    publish(relay, *log.frames(4))
    assert [event.payload for event in await reader.next(LONG_S)] == [chunks[3]]
    assert log.reads == [0]


async def test_a_reader_from_the_middle_gets_the_template_after_an_outage(
    relay: Relay, log: Log
) -> None:
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks)
    log.broken = StoreUnavailable("away")
    reader = relay.open(JOB, ReadMode.CHUNKS, after=2)
    assert await reader.next(SILENCE_S) == []
    publish(relay, *log.frames(3))
    log.broken = None
    reader.resync()
    assert [event.payload for event in await reader.next(LONG_S)] == chunks[2:]


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_a_start_behind_the_end_of_the_log_fails_the_reader(
    relay: Relay, log: Log, mode: ReadMode
) -> None:
    log.write(*stream("a", "b"))
    reader = relay.open(JOB, mode, after=3)
    with pytest.raises(StreamReset):
        await reader.next(SILENCE_S)
