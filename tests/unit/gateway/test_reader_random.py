"""Frames are lost, repeated or late at random: each client gets the log, once and in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.streaming.log_event import LogEvent, ReadMode
from gateway.streaming.reader import Reader
from gateway.streaming.relay import Relay
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    Log,
    RecordingWriter,
    chunk,
    delta_event,
    fill,
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
            relay._resync_server(0)
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
            relay._resync_server(0)
        await turns(chance.randint(0, 2))
    log.write(end="completed")
    reader.resync()
    async with asyncio.timeout(LONG_S):
        await reading
    assert got[:-1] == [delta_event(seq) for seq in range(kept + 1, count + 1)]
