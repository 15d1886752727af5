"""Chunks go straight from a reader to the writer of a client that keeps up."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.log_event import LogEvent, ReadMode
from gateway.core.relay import Relay
from shared.job.frames import FrameKind, encode
from shared.job.job_log import Delta
from tests.unit.gateway.reader_support import (
    BUFFER,
    JOB,
    LONG_S,
    SILENCE_S,
    Log,
    RecordingWriter,
    chunk,
    deltas,
    publish,
    seqs,
    stream,
    turns,
)


async def test_chunks_in_order_go_straight_to_the_writer(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, *log.frames(1))
    assert writer.taken == chunks[:1]  # now, not in a task's turn
    publish(relay, *log.frames(2, 3))
    await turns()
    publish(relay, *log.frames(4))
    assert writer.taken == chunks
    await turns()
    assert not waiting.done()
    publish(relay, *log.frames(5))
    assert await waiting == [LogEvent(5, FrameKind.DONE, b"")]
    assert log.reads == []


async def test_the_last_chunk_is_delivered_with_the_end(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, chunk(1))
    publish(relay, (2, FrameKind.LAST_CHUNK, [b"2"]), (3, FrameKind.DONE, b""))
    assert await waiting == [LogEvent(2, FrameKind.CHUNK, b"2"), LogEvent(3, FrameKind.DONE, b"")]
    assert (writer.taken, log.reads) == ([b"1"], [])


@pytest.mark.parametrize("mode", [ReadMode.DELTAS, ReadMode.END])
async def test_other_modes_treat_the_last_chunk_as_any_chunk(relay: Relay, mode: ReadMode) -> None:
    reader = relay.open(JOB, mode)
    publish(relay, (1, FrameKind.LAST_CHUNK, [b"x"], 7), (2, FrameKind.DONE, b""))
    *before, end = await reader.next(LONG_S)
    delta = LogEvent(1, FrameKind.DELTAS, [Delta(0, 0, (7,), "x")])
    assert before == ([delta] if mode is ReadMode.DELTAS else [])
    assert end == LogEvent(2, FrameKind.DONE, b"")


async def test_a_last_chunk_behind_a_gap_is_read_from_the_log(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, *log.frames(1))
    publish(relay, (3, FrameKind.LAST_CHUNK, [b"?"]), *log.frames(4))
    events = await waiting
    assert b"".join(event.payload for event in events[:-1]) == b"".join(chunks[1:])
    assert (writer.taken, events[-1].last, log.reads != []) == (chunks[:1], True, True)


async def test_the_writer_is_used_only_while_next_waits(
    relay: Relay, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S, writer)) == [1]  # it was here before
    publish(relay, chunk(2))
    assert writer.taken == []
    assert seqs(await reader.next(LONG_S, writer)) == [2]
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    reader.client_left()
    assert await waiting == []
    publish(relay, chunk(3))
    assert writer.taken == []


async def test_nothing_is_written_to_a_client_that_left(
    relay: Relay, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    reader.client_left()
    publish(relay, chunk(1))  # before the task has its turn
    await waiting
    assert writer.taken == []


async def test_a_cancelled_wait_stops_the_use_of_the_writer(
    relay: Relay, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    publish(relay, chunk(1))
    assert writer.taken == []
    assert seqs(await reader.next(LONG_S)) == [1]


async def test_a_full_writer_has_written_nothing_and_the_order_is_kept(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, chunk(1))
    writer.full = True
    publish(relay, chunk(2))
    writer.full = False
    publish(relay, chunk(3))  # 2 has not been handed out yet
    assert writer.taken == [b"1"]
    assert [event.payload for event in await waiting] == [b"2", b"3"]
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, chunk(4))
    assert writer.taken == [b"1", b"4"]
    publish(relay, (5, FrameKind.DONE, b""))
    assert seqs(await waiting) == [5]
    assert log.reads == []


async def test_no_chunk_overtakes_buffered_events(relay: Relay, writer: RecordingWriter) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, (0, FrameKind.STARTED, b"w"), chunk(1))
    assert writer.taken == []
    assert seqs(await waiting) == [0, 1]


async def test_inter_token_times_are_counted_for_each_client_that_was_written_to(
    relay: Relay, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta_event = {
        f"job_000{n:024}": last_write_at for n, last_write_at in enumerate((10.0, 9.5, 10.0))
    }
    sockets = [RecordingWriter() for _ in delta_event]
    sockets[2].full = True  # its own task will tell it, and count that
    waiting = []
    for (job, last_write_at), writer in zip(delta_event.items(), sockets, strict=True):
        reader = relay.open(job, ReadMode.CHUNKS)
        reader.last_write_at = last_write_at
        waiting.append(asyncio.create_task(reader.next(LONG_S, writer)))
    await turns()
    for seq, now in enumerate((10.25, 10.75), 1):
        monkeypatch.setattr("gateway.core.relay.monotonic", lambda now=now: now)
        relay._dispatch(b"".join(encode(job, *chunk(seq)) for job in delta_event))
    for task in waiting:
        task.cancel()
    count = registry.get_sample_value("flotilla_inter_token_seconds_count")
    total = registry.get_sample_value("flotilla_inter_token_seconds_sum")
    assert (count, total) == (4, 0.25 + 0.5 + 0.75 + 0.5)


async def test_silence_is_counted_from_the_last_write(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    loop, silence_s = asyncio.get_running_loop(), 0.05
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    for seq in (1, 2):
        loop.call_later(seq * silence_s * 0.6, publish, relay, chunk(seq))
    assert await reader.next(silence_s, writer) == []
    assert writer.taken == [b"1", b"2"]
    # The reader reads the clock before it writes, the writer afterwards.
    assert loop.time() - writer.last > 0.9 * silence_s


async def test_silence_after_writes_makes_the_reader_read_the_log(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c")
    log.write(*chunks, end="completed")
    waiting = asyncio.create_task(reader.next(SILENCE_S, writer))
    await turns()
    publish(relay, *log.frames(1, 2))
    assert writer.taken == chunks[:2]
    assert [event.payload for event in await waiting] == [chunks[2], b""]
    assert log.reads == [2]


async def test_a_gap_stops_the_use_of_the_writer_until_the_log_was_read(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e")
    log.write(*chunks[:4])
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, *log.frames(1))
    publish(relay, *log.frames(3, 4))
    assert writer.taken == chunks[:1]
    assert [event.payload for event in await waiting] == chunks[1:4]
    assert log.reads == [1]
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    log.write(chunks[4])
    publish(relay, *log.frames(4, 5))
    assert writer.taken == [chunks[0], chunks[4]]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_repeated_chunk_is_not_written(relay: Relay, writer: RecordingWriter) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, chunk(1), chunk(1), chunk(2), chunk(1), chunk(3))
    assert writer.taken == [b"1", b"2", b"3"]
    publish(relay, (4, FrameKind.DONE, b""))
    assert seqs(await waiting) == [4]


async def test_chunks_that_arrive_during_a_replay_are_delivered_after_it(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream("a", "b", "c", "d", "e")
    log.write(*chunks)
    whole, log.entries = log.entries, log.entries[:2]

    def go_on() -> None:
        log.entries = whole
        publish(relay, *log.frames(2, 3))
        publish(relay, *log.frames(4))

    log.while_reading = go_on
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    reader.resync()
    events = await waiting
    assert [event.payload for event in events] == chunks[:4]
    assert log.reads == [0]
    assert writer.taken == []
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, *log.frames(5))
    assert writer.taken == chunks[4:]
    reader.client_left()
    await waiting


async def test_chunks_for_a_full_writer_are_not_kept_in_memory_and_it_catches_up(
    relay: Relay, log: Log, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    chunks = stream(*(f"{i:0400}" for i in range(20)))
    log.write(*chunks)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, *log.frames(1, 2, 3))
    writer.full = True
    for seq in range(4, 20):
        publish(relay, *log.frames(seq))
        assert sum(len(event.payload) for event in reader._events[:-1]) <= BUFFER
    writer.full = False
    assert [event.payload for event in await waiting] == chunks[3:]
    assert writer.taken == chunks[:3]
    assert len(log.reads) == 1
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    log.write(*stream("more"))
    publish(relay, *log.frames(20, 21))
    assert writer.taken[3:] == stream("more")
    reader.client_left()
    await waiting


async def test_an_entry_without_a_chunk_writes_nothing(
    relay: Relay, writer: RecordingWriter
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, chunk(1), (2, FrameKind.CHUNK, None))
    assert writer.taken == [b"1"]
    publish(relay, chunk(3))
    assert b"".join(event.payload for event in await waiting) == b"3"


@pytest.mark.parametrize("mode", [ReadMode.DELTAS, ReadMode.END])
async def test_only_chunks_are_written(
    relay: Relay, writer: RecordingWriter, mode: ReadMode
) -> None:
    reader = relay.open(JOB, mode)
    waiting = asyncio.create_task(reader.next(LONG_S, writer))
    await turns()
    publish(relay, deltas(1), (2, FrameKind.RESULT, b"r"))
    assert (await waiting)[-1] == LogEvent(2, FrameKind.RESULT, b"r")
    assert writer.taken == []
