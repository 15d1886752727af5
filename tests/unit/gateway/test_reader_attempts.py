"""A reader never mixes two attempts at a job, and never ends an answer that lacks tokens."""

from __future__ import annotations

import pytest

from gateway.streaming.log_event import ReadMode
from gateway.streaming.relay import Relay
from shared.api.errors import StreamReset
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Entry, Journal, make_journal
from tests.unit.gateway.reader_support import JOB, Log, chunk, of_attempt, publish


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
async def test_two_attempts_are_never_mixed(relay: Relay, log: Log, mode: ReadMode) -> None:
    """Whatever made the queue start a job anew of which a client has got something."""
    kind = FrameKind.CHUNK if mode is ReadMode.CHUNKS else FrameKind.DELTAS
    journal = make_journal([(0, 0, (5,), "x")])
    reader = relay.open(JOB, mode)
    relay._dispatch(of_attempt(1, (1, kind, None, journal), (2, kind, None, journal)))
    assert len(await reader.next(5)) == 2
    relay._dispatch(of_attempt(2, (3, kind, None, journal)))
    with pytest.raises(StreamReset):
        await reader.next(5)


async def test_an_attempt_of_which_nothing_was_delivered_is_replaced(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    relay._dispatch(of_attempt(2, (1, FrameKind.CHUNK, [b"new"], 5)))
    relay._dispatch(of_attempt(1, (2, FrameKind.CHUNK, [b"old"], 6)))
    relay._dispatch(of_attempt(2, (2, FrameKind.CHUNK, [b"er"], 6)))
    assert b"".join(event.payload for event in await reader.next(5)) == b"newer"


async def test_the_log_of_another_attempt_fails_the_reader(relay: Relay, log: Log) -> None:
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
async def test_an_end_with_another_number_of_tokens_fails_the_reader(
    relay: Relay, log: Log, from_log: bool, generated: int | None, whole: bool
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    journals: list[Journal] = [5, ((0, 0, (6, 7), "x"),)]
    for seq, journal in enumerate(journals, 1):
        log.entries.append(Entry(seq, (b"%d" % seq,), journal, ""))
    log.entries.append(Entry(3, (), None, "completed", tokens=generated))
    if from_log:
        reader.resync()
    else:
        publish(relay, *log.frames(1, 2), (3, FrameKind.DONE, b"", generated))
    if whole:
        assert [event.seq for event in await reader.next(5)] == [1, 2, 3]
    else:
        with pytest.raises(StreamReset):
            await reader.next(5)


async def test_tokens_are_not_compared_for_a_reader_from_the_middle(relay: Relay, log: Log) -> None:
    log.entries = [Entry(1, (b"1",), 5, ""), Entry(2, (b"2",), 6, "")]
    log.entries.append(Entry(3, (), None, "completed", tokens=2))
    reader = relay.open(JOB, ReadMode.CHUNKS, after=1)
    reader.resync()
    assert [event.seq for event in await reader.next(5)] == [2, 3]


async def test_an_end_with_the_number_of_a_delivered_chunk_fails_the_reader(
    relay: Relay, log: Log
) -> None:
    """A chunk was published that the log does not hold: its client waited for ever."""
    reader = relay.open(JOB, ReadMode.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    await reader.next(5)
    log.write(b"1", end="failed")
    reader.resync()
    with pytest.raises(StreamReset):
        await reader.next(5)
