"""What a reader does if frames or log are malformed, entries are lost, or Redis is away."""

from __future__ import annotations

from typing import Any

import pytest
from gateway.core.log_event import LogEvent, ReadMode

from gateway.core import reader as module
from gateway.core.relay import Relay
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.frames import FrameKind
from shared.job.job_log import Entry
from shared.store.interface import StoreTimeout, StoreUnavailable
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    SILENCE_S,
    Log,
    chunk,
    delta_event,
    deltas,
    outage_grows,
    publish,
    seqs,
    stream,
)


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
async def test_a_log_without_what_was_delivered_fails_the_reader(
    relay: Relay, log: Log, lost: list[Entry]
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    await reader.next(LONG_S)
    log.entries = lost
    with pytest.raises(StreamReset):
        await reader.next(SILENCE_S)


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreTimeout("away")])
async def test_an_outage_becomes_an_error_only_after_a_while(
    relay: Relay, log: Log, mode: ReadMode, error: Exception
) -> None:
    reader = relay.open(JOB, mode)
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
        log.broken = StoreUnavailable("away")
        assert await reader.next(SILENCE_S) == []
        outage_grows(reader, module._REDIS_PATIENCE_S - 10)
        log.broken = None
        log.write(b"x")
        assert len(await reader.next(SILENCE_S)) == 1


async def test_a_lost_entry_of_the_log_fails_the_reader(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2", b"3", b"4")
    log.lose(3)
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(5)


async def test_chunks_behind_a_lost_entry_can_not_be_decoded(relay: Relay, log: Log) -> None:
    log.write(*stream("a", "b", "c", "d"))
    log.lose(2)
    reader = relay.open(JOB, ReadMode.CHUNKS, after=3)
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)


async def test_a_reader_of_the_end_finds_it_behind_a_lost_entry(relay: Relay, log: Log) -> None:
    log.write(b"1", b"2", end="completed")
    log.lose(2)
    reader = relay.open(JOB, ReadMode.END)
    assert await reader.next(SILENCE_S) == [LogEvent(3, FrameKind.ENDED, b"")]


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
async def test_a_malformed_chunk_is_read_from_the_log(relay: Relay, log: Log, payload: Any) -> None:
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


@pytest.mark.parametrize(
    "journal", [7, [7], [[1]], [[0, 0, [1], "x", 5, "x", 7]], [[0, 0, 1, 2]], [None]]
)
async def test_malformed_deltas_are_read_from_the_log(relay: Relay, log: Log, journal: Any) -> None:
    reader, other = (
        relay.open(JOB, ReadMode.DELTAS),
        relay.open("job_001" + "0" * 24, ReadMode.CHUNKS),
    )
    log.write_deltas("1", "2", "3")
    publish(relay, deltas(1), (2, FrameKind.DELTAS, None, journal))
    publish(relay, chunk(1), job=other.job_id)
    assert await reader.next(LONG_S) == [delta_event(1), delta_event(2), delta_event(3)]
    publish(relay, deltas(4))
    assert await reader.next(LONG_S) == [delta_event(4)]
    assert seqs(await other.next(LONG_S)) == [1]
