"""The last chunk, and the time between chunks that are written to a client that keeps up."""

from __future__ import annotations

import asyncio

import pytest
from gateway.core.log_event import LogEvent, ReadMode
from prometheus_client import CollectorRegistry

from gateway.core.relay import Relay
from shared.job.frames import FrameKind, encode
from shared.job.job_log import Delta
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    Log,
    RecordingWriter,
    chunk,
    publish,
    stream,
    turns,
)


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
