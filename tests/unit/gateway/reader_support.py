"""Shared by the tests of the relay and its readers: a job log in memory, a writer, and frames."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.log_event import LogEvent, ReadMode

from gateway.core.reader import Reader
from gateway.core.relay import Relay
from shared.job.frames import DeltaEncoder, FrameKind, Item, encode
from shared.job.job_log import Delta, Entry, Journal, make_journal
from shared.job.replies import LogPart

JOB = "job_000" + "0" * 24
BUFFER = 1000
LONG_S = 30.0
"""Nothing in these tests waits so long."""
SILENCE_S = 0.001


class Log:
    """A log in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.generation = 1
        self.encoder = DeltaEncoder()
        self.reads: list[int] = []
        self.at_once = 0
        """How many entries a reader gets in one part of the log; 0: all."""
        self.broken: Exception | None = None
        self.while_reading: Callable[[], object] = lambda: None

    def write(self, *chunks: bytes, end: str = "") -> None:
        for chunk in chunks:
            items = tuple(self.encoder.encode([chunk]))
            self.entries.append(Entry(len(self.entries) + 1, items, None, ""))
        if end:
            self.entries.append(Entry(len(self.entries) + 1, (), None, end))

    def write_deltas(self, *texts: str) -> None:
        """Entries of a job whose answer is not streamed: nothing but a journal."""
        for text in texts:
            seq = len(self.entries) + 1
            self.entries.append(Entry(seq, (), make_journal([(0, 0, (seq,), text)]), ""))

    def lose(self, seq: int) -> None:
        """Redis has lost this entry, and has later ones."""
        self.entries[seq - 1] = Entry(seq, (), None, "", lost=True)

    def frames(self, *numbers: int) -> list[tuple[int, FrameKind, Any, Journal]]:
        """The frames of these entries."""
        return [
            (seq, FrameKind.DONE, b"", None)
            if entry.end
            else (seq, FrameKind.CHUNK, entry.items, entry.journal)
            if entry.items
            else (seq, FrameKind.DELTAS, None, entry.journal)
            for seq, entry in enumerate(self.entries, 1)
            if seq in numbers
        ]

    async def read_log(self, job_id: str, after: int, most_bytes: int) -> LogPart:
        assert job_id == JOB
        self.reads.append(after)
        found = self.entries[after:]
        self.while_reading()
        if self.broken is not None:
            raise self.broken
        if self.at_once:
            return LogPart(self.generation, found[: self.at_once], len(found) > self.at_once)
        return LogPart(self.generation, found)

    async def last_entry(self, job_id: str) -> Entry | None:
        assert job_id == JOB
        if self.broken is not None:
            raise self.broken
        return self.entries[-1] if self.entries else None


class RecordingWriter:
    """A sink: what a client was sent."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.full = False
        self.last = 0.0

    def write(self, data: bytes) -> bool:
        if not self.full:
            self.taken.append(data)
            self.last = asyncio.get_running_loop().time()
        return not self.full


Frame = tuple[int, FrameKind, Any] | tuple[int, FrameKind, Any, Any]
"""Without its job: seq, kind, payload, and a journal if there is one."""


def publish(relay: Relay, *frames: Frame, job: str = JOB) -> None:
    """One message with these frames arrives."""
    relay._dispatch(b"".join(encode(job, *frame) for frame in frames))


def chunk(seq: int, data: bytes = b"") -> tuple[int, FrameKind, Sequence[Item]]:
    """A chunk without a quote has no template."""
    return seq, FrameKind.CHUNK, [data or b"%d" % seq]


def deltas(seq: int, text: str = "") -> Frame:
    """A step of a job whose answer is not streamed."""
    return seq, FrameKind.DELTAS, None, make_journal([(0, 0, (seq,), text or str(seq))])


def delta_event(seq: int, text: str = "") -> LogEvent:
    """What comes of it."""
    return LogEvent(seq, FrameKind.DELTAS, [Delta(0, 0, (seq,), text or str(seq))])


def stream(*words: str) -> list[bytes]:
    """Chunks that have a template."""
    return [b"data: " + json.dumps({"text": word, "more": None}).encode() for word in words]


async def turns(count: int = 5) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)


def seqs(events: list[LogEvent]) -> list[int]:
    return [event.seq for event in events]


LAST_FRAME: Frame = (3, FrameKind.DONE, b"")


def fill(log: Log, mode: ReadMode, count: int) -> None:
    """Append entries up to number `count`, as `chunk` and `deltas` publish them."""
    for seq in range(len(log.entries) + 1, count + 1):
        if mode is ReadMode.CHUNKS:
            log.write(b"%d" % seq)
        else:
            log.write_deltas(str(seq))


async def begin_reading(relay: Relay, log: Log, mode: ReadMode) -> Reader:
    """A reader that has had entry 1."""
    fill(log, mode, 1)
    reader = relay.open(JOB, mode)
    publish(relay, *log.frames(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    return reader


def outage_grows(reader: Reader, seconds: float) -> None:
    """As if Redis had been away for so much longer."""
    assert reader._redis_failing_since is not None
    reader._redis_failing_since -= seconds


def of_attempt(generation: int, *frames: Frame) -> bytes:
    return b"".join(encode(JOB, *frame, generation=generation) for frame in frames)
