"""A reader continues with the next attempt at a job, but never mixes two answers, and never ends
one that lacks tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gateway.core.log_event import ReadMode

from gateway.core.relay import Relay
from shared.job.errors import StreamReset
from shared.job.frames import DeltaEncoder, FrameKind
from shared.job.job_log import Entry, Journal
from tests.unit.gateway.reader_support import (
    JOB,
    Log,
    begin_reading,
    chunk,
    fill,
    of_attempt,
    publish,
    seqs,
)

MODES = [ReadMode.CHUNKS, ReadMode.DELTAS]


def publish_of(relay: Relay, log: Log, generation: int, *numbers: int) -> None:
    """Entries of the log arrive as frames of this generation."""
    relay._dispatch(of_attempt(generation, *log.frames(*numbers)))


@pytest.mark.parametrize("mode", MODES)
async def test_two_answers_are_never_mixed(relay: Relay, log: Log, mode: ReadMode) -> None:
    """Whatever made the queue start a job anew of which a client has got something."""
    reader = await begin_reading(relay, log, mode)
    log.entries, log.encoder, log.generation = [], DeltaEncoder(), 2
    log.write(b"other") if mode is ReadMode.CHUNKS else log.write_deltas("other")
    fill(log, mode, 2)
    publish_of(relay, log, 2, 1, 2)
    with pytest.raises(StreamReset):
        await reader.next(5)


async def test_an_attempt_of_which_nothing_was_delivered_is_replaced(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    relay._dispatch(of_attempt(2, (1, FrameKind.CHUNK, [b"new"], 5)))
    relay._dispatch(of_attempt(1, (2, FrameKind.CHUNK, [b"old"], 6)))
    relay._dispatch(of_attempt(2, (2, FrameKind.CHUNK, [b"er"], 6)))
    assert b"".join(event.payload for event in await reader.next(5)) == b"newer"
    assert log.reads == []


async def test_frames_of_an_earlier_attempt_are_ignored(relay: Relay, log: Log) -> None:
    reader = await begin_reading(relay, log, ReadMode.CHUNKS)
    fill(log, ReadMode.CHUNKS, 2)
    log.generation = 2
    publish_of(relay, log, 2, 2)
    assert seqs(await reader.next(5)) == [2]
    publish_of(relay, log, 1, 2)
    relay._dispatch(of_attempt(1, (3, FrameKind.CHUNK, [b"stale"], 5)))
    fill(log, ReadMode.CHUNKS, 3)
    publish_of(relay, log, 2, 3)
    assert [event.payload for event in await reader.next(5)] == [b"3"]
    assert log.reads == [0]


@pytest.mark.parametrize("mode", MODES)
async def test_a_reader_that_missed_the_next_attempt_compares_the_whole_log(
    relay: Relay, log: Log, mode: ReadMode
) -> None:
    """No frame of it came, and no process has seen a lost connection."""
    reader = await begin_reading(relay, log, mode)
    fill(log, mode, 3)
    log.generation = 2
    reader.resync()
    assert seqs(await reader.next(5)) == [2, 3]
    assert log.reads == [1, 0]


# --- after a lost connection, Redis may have lost writes ---


def lose_connection(relay: Relay) -> None:
    relay._on_lost(range(1))
    relay._on_connected(range(1))


def keep(log: Log, mode: ReadMode, count: int) -> None:
    """Redis has lost all entries but the first `count`."""
    del log.entries[count:]


def replace(log: Log, mode: ReadMode, count: int) -> None:
    """And others have taken their place, as many as there were."""
    n_entries = len(log.entries)
    keep(log, mode, count)
    for n in range(n_entries - count):
        log.write(b"other %d" % n) if mode is ReadMode.CHUNKS else log.write_deltas(f"other {n}")


def replace_with_more(log: Log, mode: ReadMode, count: int) -> None:
    replace(log, mode, count)
    fill(log, mode, len(log.entries) + 3)


def end_early(log: Log, mode: ReadMode, count: int) -> None:
    keep(log, mode, count)
    log.write(end="failed")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("lose", [keep, replace, replace_with_more, end_early])
@pytest.mark.parametrize("generation", [1, 2])
async def test_a_log_that_has_lost_delivered_entries_fails_the_reader(
    relay: Relay,
    log: Log,
    mode: ReadMode,
    count: int,
    lose: Callable[[Log, ReadMode, int], None],
    generation: int,
) -> None:
    reader = await begin_reading(relay, log, mode)
    fill(log, mode, 4)
    publish(relay, *log.frames(2, 3, 4))
    assert seqs(await reader.next(5)) == [2, 3, 4]
    lose(log, mode, count)
    log.generation = generation
    lose_connection(relay)
    publish_of(relay, log, 1, 5)
    with pytest.raises(StreamReset):
        await reader.next(5)


# --- the end ---


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
