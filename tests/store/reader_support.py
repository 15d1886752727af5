"""A job's log in memory, its worker, a gateway's relay and its clients, for tests of readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.core.reader import LogEvent, Reader
from gateway.core.relay import Relay
from shared.job.log import (
    START,
    DeltaDecoder,
    DeltaEncoder,
    Entry,
    Journal,
    Position,
    frame_head,
    make_journal,
    pack_entry,
    pack_frame,
)
from shared.job.states import JobState
from shared.store.queue import Watched

JOB = "job_000" + "0" * 24
LONG_S = 30.0
"""Nothing in these tests waits so long."""
SILENCE_S = 0.001


def frame_of(entry: Entry, result: Sequence[Any] = (), job_id: str = JOB) -> bytes:
    """As it is published. `result`: of a short answer that is not streamed."""
    (generation, number), journal, items, event, details, _ = entry
    named = [event, *details, *result] if event else None
    packed = pack_entry(journal, items, named)
    return pack_frame(frame_head(job_id, generation), number, packed)


class Log:
    """The log of one job, and what a queue answers about it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.state = JobState.QUEUED
        self.is_gone = False
        self.generation = 0
        """Of the last claim or of what has ended it."""
        self.encoder = DeltaEncoder()
        self.reads: list[tuple[Position, int]] = []
        self.watches = 0
        self.looks: list[int] = []
        self.unwatched: list[str] = []
        self.broken: Exception | None = None
        self.before_reply: Callable[[], object] = lambda: None

    # --- what writes it ---

    def _append(
        self, journal: Journal, items: Sequence[Any], event: str = "", details: Sequence[Any] = ()
    ) -> Entry:
        if event and event not in ("restarted", "completed"):
            self.generation += 10
        position = Position(self.generation, len(self.entries) + 1)
        self.entries.append(Entry(position, journal, items, event, details))
        return self.entries[-1]

    def mark(self, event: str, *details: Any) -> Entry:
        """An event of a new generation, or `restarted`."""
        self.state = {"claimed": JobState.IN_PROGRESS, "requeued": JobState.QUEUED}.get(
            event, self.state
        )
        if event == "claimed":
            self.encoder, decoder = DeltaEncoder(), DeltaDecoder()
            for entry in self.entries:
                decoder.decode(entry.items)
            self.encoder = DeltaEncoder(decoder)
        if event == "restarted":
            self.encoder = DeltaEncoder()
        return self._append(None, (), event, details)

    def write(self, *chunks: bytes) -> Entry:
        """One step that streams these chunks."""
        return self._append(None, tuple(self.encoder.encode(chunks)))

    def write_text(self, text: str) -> Entry:
        """One step of an answer that is not streamed."""
        token = len(self.entries) + 1
        return self._append(make_journal([(0, 0, (token,), text)]), ())

    def end(self, *chunks: bytes, state: JobState = JobState.COMPLETED, streamed: int = 1) -> Entry:
        """The last entry."""
        self.state = state
        return self._append(None, tuple(self.encoder.encode(chunks)), state, (7, streamed))

    def lose(self, count: int) -> None:
        """Redis comes back without the last entries."""
        del self.entries[len(self.entries) - count :]

    # --- the queue ---

    async def _reply(self) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken

    async def read(self, job_id: str, after: Position, most: int) -> list[Entry]:
        assert job_id == JOB
        self.reads.append((after, most))
        found = [entry for entry in self.entries if entry.position >= after][:most]
        self.before_reply()
        await self._reply()
        return found

    async def watch(self, job_id: str, gateway: str, *, follow: bool) -> Watched | None:
        self.watches += 1
        await self._reply()
        if self.is_gone or job_id != JOB:
            return None
        holder = self.generation if self.state is JobState.IN_PROGRESS else None
        numbers = [e.position.number for e in self.entries if e.event == "restarted"]
        return Watched(self.state, holder, self.generation > 0, max(numbers, default=0))

    async def unwatch(self, job_id: str, gateway: str) -> None:
        await self._reply()
        self.unwatched.append(job_id)

    async def positions(self, shard: int, job_ids: Sequence[str]) -> list[Position | None]:
        self.looks.append(len(job_ids))
        await self._reply()
        last = self.entries[-1].position if self.entries else START
        return [None if self.is_gone or job_id != JOB else last for job_id in job_ids]


class Subscription:
    """In place of a gateway's: what is published arrives if it is connected."""

    def __init__(self, *arguments: Any, on_silent: Any) -> None:
        self.on_message, self._on_connected = arguments[3:5]
        self.connected = asyncio.Event()
        self.is_served = True

    async def run(self) -> None:
        await asyncio.Event().wait()

    def connect(self) -> None:
        self.connected.set()
        self._on_connected()


class Client:
    """Reads an answer, now and then slowly."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.full = False

    def write(self, data: bytes) -> bool:
        if not self.full:
            self.taken.append(data)
        return not self.full

    @property
    def data(self) -> bytes:
        return b"".join(self.taken)


def publish(relay: Relay, *entries: Entry, result: Sequence[Any] = ()) -> None:
    """One message with the frames of these entries arrives."""
    relay.dispatch(b"".join(frame_of(entry, result) for entry in entries))


def stream(*words: str) -> list[bytes]:
    """Chunks that have a template."""
    return [b"data: " + json.dumps({"text": word, "more": None}).encode() for word in words]


def output(events: Iterable[LogEvent]) -> bytes:
    return b"".join(event.output for event in events)


async def read_to_end(reader: Reader, client: Client, pause: Callable[[], int]) -> list[LogEvent]:
    """As an answer does: what the reader does not write itself is written before it goes on."""
    got: list[LogEvent] = []
    while not (got and got[-1].last):
        events = await reader.next(LONG_S, client)
        await turns(pause())
        client.taken += [event.output for event in events if event.output]
        got += events
    return got


async def turns(count: int = 5) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)
