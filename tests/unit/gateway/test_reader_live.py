"""A reader that gets all frames: order, modes, templates."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.log_event import LogEvent, ReadMode
from gateway.core.relay import Relay
from shared.job.frames import DeltaEncoder, FrameKind, Item
from shared.job.job_log import Delta, Entry, Prompt, make_journal
from tests.unit.gateway.reader_support import (
    BUFFER,
    JOB,
    LONG_S,
    NEXT,
    SILENCE_S,
    Frame,
    Log,
    begin_reading,
    chunk,
    delta_event,
    deltas,
    publish,
    seqs,
    stream,
    turns,
)


async def test_frames_are_delivered_in_order_without_reading_the_log(
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


async def test_a_repeated_frame_does_not_end_the_wait(relay: Relay, log: Log) -> None:
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


async def test_the_start_has_no_number_and_is_delivered_when_it_arrives(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, (0, FrameKind.STARTED, b"w-1"), chunk(1))
    assert seqs(await reader.next(LONG_S)) == [0, 1]


async def test_a_reader_delivers_only_entries_behind_its_start(relay: Relay, log: Log) -> None:
    log.write(b"1", b"2", b"3")
    reader = relay.open(JOB, ReadMode.CHUNKS, after=2)
    publish(relay, chunk(2), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [3]


async def test_events_of_a_slow_client_are_not_kept_in_memory_and_it_catches_up(
    relay: Relay, log: Log
) -> None:
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


async def test_a_client_that_leaves_ends_the_wait(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await asyncio.sleep(0)
    reader.client_left()
    assert await waiting == []
    assert log.reads == []


async def test_deltas_come_from_frames_and_from_the_journal(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1, "a"))
    assert await reader.next(LONG_S) == [delta_event(1, "a")]
    log.write_deltas("a", "b")
    reader.resync()
    assert await reader.next(LONG_S) == [delta_event(2, "b")]
    assert log.reads == [1]


async def test_deltas_are_the_same_from_a_frame_and_from_the_log(relay: Relay, log: Log) -> None:
    records: list[Delta | Prompt] = [Prompt(0, 5), Delta(0, 0, (1, 2), "ü")]
    records += [Delta(0, 1, (), ""), Delta(1, 0, (3,), "x")]
    log.entries = [Entry(1, (), make_journal(records), "")]
    early = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, *log.frames(1))
    late = relay.open(JOB, ReadMode.DELTAS)
    late.resync()
    assert await early.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, records)]
    assert await late.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, records)]
    assert log.reads == [0]


async def test_deltas_are_read_from_an_entry_that_has_chunks_too(relay: Relay, log: Log) -> None:
    """An engine may stream what was not to be streamed; the shortest journal counts on chunks."""
    items: list[Item] = [b"a"]
    journal = make_journal([(0, 0, (7,), "a")], items)
    assert journal == 7
    log.entries = [Entry(seq, tuple(items), journal, "") for seq in (1, 2)]
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, (1, FrameKind.DELTAS, items, journal))
    assert await reader.next(LONG_S) == [LogEvent(1, FrameKind.DELTAS, [Delta(0, 0, (7,), "a")])]
    reader.resync()
    assert await reader.next(LONG_S) == [LogEvent(2, FrameKind.DELTAS, [Delta(0, 0, (7,), "a")])]


async def test_an_entry_without_a_record_is_not_a_gap(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1), (2, FrameKind.DELTAS, None, None), deltas(3))
    assert await reader.next(LONG_S) == [
        delta_event(1),
        LogEvent(2, FrameKind.DELTAS, []),
        delta_event(3),
    ]
    assert log.reads == []
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_repeated_deltas_are_dropped(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.DELTAS)
    publish(relay, deltas(1), deltas(1), deltas(2), deltas(1), deltas(2), deltas(3))
    assert await reader.next(LONG_S) == [delta_event(n) for n in (1, 2, 3)]
    waiting = asyncio.create_task(reader.next(LONG_S))
    await turns()
    publish(relay, deltas(3))
    await turns()
    assert not waiting.done()
    publish(relay, deltas(4))
    assert await waiting == [delta_event(4)]
    assert log.reads == []


async def test_deltas_can_start_in_the_middle_of_the_log(relay: Relay, log: Log) -> None:
    log.write_deltas("1", "2", "3")
    reader = relay.open(JOB, ReadMode.DELTAS, after=2)
    assert await reader.next(SILENCE_S) == [delta_event(3)]
    publish(relay, deltas(3), deltas(4))
    assert await reader.next(LONG_S) == [delta_event(4)]


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_an_end_in_order_is_delivered_without_reading_the_log(
    relay: Relay, log: Log, mode: ReadMode, kind: FrameKind
) -> None:
    reader = relay.open(JOB, mode)
    publish(relay, chunk(1) if mode is ReadMode.CHUNKS else deltas(1), (2, kind, b"r"))
    assert (await reader.next(LONG_S))[1:] == [LogEvent(2, kind, b"r")]
    assert log.reads == []


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_the_start_is_not_an_entry(
    relay: Relay, log: Log, registry: CollectorRegistry, mode: ReadMode
) -> None:
    reader = await begin_reading(relay, log, mode)
    started: Frame = (0, FrameKind.STARTED, b"w-2")
    publish(relay, started, NEXT[mode])
    events = await reader.next(LONG_S)
    assert [(event.seq, event.kind == FrameKind.STARTED) for event in events] == [
        (0, True),
        (2, False),
    ]
    reader.resync()
    publish(relay, started)  # it is delta_event at once, the log does not have it
    assert reader._events == [LogEvent(0, FrameKind.STARTED, b"w-2")]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_an_entry_without_a_chunk_is_not_a_gap(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), (2, FrameKind.CHUNK, None), chunk(3))
    events = await reader.next(LONG_S)
    assert b"".join(event.payload for event in events) == b"13"
    assert seqs(events) == [1, 2, 3]
    assert log.reads == []
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_chunks_are_decoded_with_their_templates(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e", "f")
    log.write(*chunks, end="completed")
    assert log.entries[4].items == (b"e",)
    publish(relay, *log.frames(1, 2))
    publish(relay, *log.frames(3, 5, 6))  # 4 is lost
    events = await reader.next(LONG_S)
    assert [event.payload for event in events] == [*chunks, b""]
    assert log.reads == [3]


async def test_a_step_of_several_chunks_is_one_event(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    encoder, chunks = DeltaEncoder(), [b'"%d"' % n for n in range(5)]
    for seq, step in enumerate([chunks[:2], chunks[2:]], 1):
        publish(relay, (seq, FrameKind.CHUNK, encoder.encode(step)))
    events = await reader.next(LONG_S)
    assert [event.payload for event in events] == [b"".join(chunks[:2]), b"".join(chunks[2:])]


async def test_two_readers_of_a_job_do_not_share_a_template(relay: Relay, log: Log) -> None:
    early = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks)
    publish(relay, *log.frames(1, 2, 3))
    late = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, *log.frames(4))
    for reader in (early, late):
        assert [event.payload for event in await reader.next(LONG_S)] == chunks
