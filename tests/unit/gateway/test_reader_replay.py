"""When a reader reads the log: in a silence, before an end, from the middle of a stream."""

from __future__ import annotations

import pytest
from gateway.core.log_event import LogEvent, ReadMode
from prometheus_client import CollectorRegistry

from gateway.core.relay import Relay
from shared.job.errors import StreamReset
from shared.job.frames import FrameKind
from shared.store.interface import StoreUnavailable
from tests.unit.gateway.reader_support import (
    JOB,
    LAST_FRAME,
    LONG_S,
    SILENCE_S,
    Log,
    begin_reading,
    deltas,
    fill,
    publish,
    seqs,
    stream,
)


async def test_silence_makes_the_reader_read_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    assert await reader.next(SILENCE_S) == []
    log.write(b"1")
    assert seqs(await reader.next(SILENCE_S)) == [1]
    log.write(end="completed")
    (end,) = await reader.next(SILENCE_S)
    assert (end.seq, end.kind, end.last) == (2, FrameKind.ENDED, True)
    assert log.reads == [0, 0, 1]


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
