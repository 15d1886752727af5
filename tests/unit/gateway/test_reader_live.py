"""A reader that gets all frames: modes, templates, steps without a chunk or a record."""

from __future__ import annotations

import pytest
from gateway.core.log_event import LogEvent, ReadMode
from prometheus_client import CollectorRegistry

from gateway.core.relay import Relay
from shared.job.frames import DeltaEncoder, FrameKind, Item
from shared.job.job_log import Delta, Entry, Prompt, make_journal
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    Log,
    chunk,
    delta_event,
    deltas,
    publish,
    seqs,
    stream,
)


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


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_an_end_in_order_is_delivered_without_reading_the_log(
    relay: Relay, log: Log, mode: ReadMode, kind: FrameKind
) -> None:
    reader = relay.open(JOB, mode)
    publish(relay, chunk(1) if mode is ReadMode.CHUNKS else deltas(1), (2, kind, b"r"))
    assert (await reader.next(LONG_S))[1:] == [LogEvent(2, kind, b"r")]
    assert log.reads == []


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
