"""Frames are lost, repeated or late at random: each client gets the log, once and in order."""

from __future__ import annotations

import asyncio
import random

import pytest
from gateway.core.log_event import LogEvent, ReadMode

from gateway.core.reader import Reader
from gateway.core.relay import Relay
from shared.job.errors import StreamReset
from shared.job.frames import DeltaDecoder, DeltaEncoder
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    Log,
    RecordingWriter,
    chunk,
    delta_event,
    fill,
    of_attempt,
    publish,
    seqs,
    stream,
    turns,
)


async def test_frames_lost_repeated_or_late_at_random(relay: Relay, log: Log) -> None:
    for lost in range(1 << 6):
        log.entries = []
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


@pytest.mark.parametrize("seed", range(60))
async def test_every_byte_is_delivered_once_and_in_order(
    relay: Relay, log: Log, writer: RecordingWriter, seed: int
) -> None:
    chance = random.Random(seed)
    chunks = stream(*("x" * chance.randint(0, 30) for _ in range(40)))
    kept = chance.randint(0, 20)
    log.at_once = chance.choice([0, 1, 3])
    log.write(*chunks[:kept])
    reader = relay.open(JOB, ReadMode.CHUNKS, after=kept)

    async def read() -> None:
        while True:
            events = await reader.next(LONG_S, writer)
            await turns(chance.randint(0, 3))  # the writer has no room
            writer.taken += [event.payload for event in events if not event.last]
            if events and events[-1].last:
                return

    reading = asyncio.create_task(read())
    published: list[int] = []
    for number, data in enumerate(chunks[kept:], kept + 1):
        log.write(data)
        published.append(number)
        writer.full = chance.random() < 0.3
        if chance.random() < 0.8:
            publish(relay, *log.frames(*published))
            published = [] if chance.random() < 0.8 else [number]  # sent again
        elif chance.random() < 0.3:
            published = []  # lost
        if chance.random() < 0.1:
            log.while_reading = lambda: reader.resync() if chance.random() < 0.5 else None
            relay._resync(range(1))
        await turns(chance.randint(0, 2))
    log.write(end="completed")
    reader.resync()
    async with asyncio.timeout(LONG_S):
        await reading
    assert b"".join(writer.taken) == b"".join(chunks[kept:])


@pytest.mark.parametrize("seed", range(60))
async def test_all_deltas_are_delivered_once_and_in_order(
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
            relay._resync(range(1))
        await turns(chance.randint(0, 2))
    log.write(end="completed")
    reader.resync()
    async with asyncio.timeout(LONG_S):
        await reading
    assert got[:-1] == [delta_event(seq) for seq in range(kept + 1, count + 1)]


class Attempts:
    """A job that loses its worker, and a Redis that loses its last writes, at random."""

    def __init__(self, relay: Relay, log: Log, mode: ReadMode, chance: random.Random) -> None:
        self.relay = relay
        self.log = log
        self.mode = mode
        self.chance = chance
        self.written = 0
        self.published = 0
        """Number of the last entry that was published or lost on the way."""

    def write(self) -> None:
        """The worker makes an entry; its text is in no other one."""
        self.written += 1
        text = f"{self.written} " + "x" * self.chance.randint(0, 3)
        if self.mode is ReadMode.CHUNKS:
            self.log.write(*stream(text))
        else:
            self.log.write_deltas(text)

    def publish(self) -> None:
        """All entries since the last call arrive, or are lost; some arrive twice."""
        first = self.published + self.chance.choice([0, 1, 1, 1])
        self.published = len(self.log.entries)
        if self.chance.random() < 0.8:
            frames = self.log.frames(*range(max(1, first), self.published + 1))
            self.relay._dispatch(of_attempt(self.log.generation, *frames))

    def lose_worker(self) -> None:
        """Another worker continues the log."""
        self.log.generation += 1
        self.continue_log()

    def continue_log(self) -> None:
        """A worker encodes its chunks behind those of the log."""
        self.log.encoder, decoder = DeltaEncoder(), DeltaDecoder()
        for entry in self.log.entries:
            self.log.encoder.encode([decoder.decode(entry.items)])

    def lose_writes(self) -> int:
        """Redis is restarted without its last writes; returns how many entries are left of the log.

        Others may take their place before a reader reads the log.
        """
        lost = min(len(self.log.entries), self.chance.choice([0, 0, 1, 2, 5]))
        left = len(self.log.entries) - lost
        del self.log.entries[left:]
        self.published = min(self.published, left)
        self.relay._on_lost(range(1))
        self.log.generation += self.chance.choice([0, 1])
        self.continue_log()
        for _ in range(self.chance.choice([0, lost, lost, lost + 2])):
            self.write()
        self.relay._on_connected(range(1))
        return left


@pytest.mark.parametrize("mode", [ReadMode.CHUNKS, ReadMode.DELTAS])
@pytest.mark.parametrize("seed", range(80))
async def test_attempts_and_lost_writes_at_random(
    relay: Relay, log: Log, mode: ReadMode, seed: int
) -> None:
    """Each client gets the log, once and in order, over all attempts; it gets an error if and only
    if Redis has lost what it had got."""
    chance = random.Random(seed)
    log.at_once = chance.choice([0, 1, 3])
    job = Attempts(relay, log, mode, chance)
    got: dict[Reader, list[LogEvent]] = {}
    reset: set[Reader] = set()
    must_reset: set[Reader] = set()
    reading: list[asyncio.Task[None]] = []

    async def read(reader: Reader) -> None:
        try:
            while not got[reader] or not got[reader][-1].last:
                got[reader] += await reader.next(LONG_S)
                await turns(chance.randint(0, 3))
        except StreamReset:
            reset.add(reader)

    def open_reader() -> None:
        reader = relay.open(JOB, mode)
        got[reader] = []
        reader.resync()
        reading.append(asyncio.create_task(read(reader)))

    open_reader()
    for _ in range(60):
        act = chance.random()
        if act < 0.6:
            job.write()
            job.publish()
        elif act < 0.75:
            job.lose_worker()
        elif act < 0.85:
            left = job.lose_writes()
            must_reset |= {reader for reader in got if reader._order.delivered_seq > left}
        elif act < 0.9 and len(got) < 4:
            open_reader()
        await turns(chance.randint(0, 3))
    log.write(end="completed")
    relay._resync(range(1))
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*reading)
    log.at_once = 0
    everything = relay.open(JOB, mode)
    everything.resync()
    expected = await everything.next(LONG_S)
    assert reset == must_reset
    for reader, events in got.items():
        if reader not in reset:
            assert events == expected
