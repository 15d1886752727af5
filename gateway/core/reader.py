"""A reader: one client's place in the log of its job, live from frames or from pages of the log.

Token path: gateway/core/relay.py -> here -> answer.py. Where the client keeps up, a chunk goes
on to the connection's ChunkWriter at once, without a task in between.

A reader takes an entry whose number is one more than its own, and whose generation is its own, or
higher with an event: each generation begins with one. Anything else makes it read the log in pages,
from its own last entry on. That has to be there still: ids are never given twice, so a log that has
it has all that the client has got; one that lacks it is never continued (StreamReset). A client
that reads slowly falls behind its frames, and then costs one page, however long its answer is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.http import memory
from gateway.http.asgi_io import ChunkWriter
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.job import shard_in
from shared.job.log import (
    ENDS,
    START,
    DeltaDecoder,
    Entry,
    EventName,
    Frame,
    Item,
    Journal,
    Position,
    read_journal,
)
from shared.store.errors import StoreError

if TYPE_CHECKING:
    from gateway.core.relay import Relay
    from shared.store.queue import Watched

MALFORMED = (ValueError, TypeError, LookupError)
"""The exceptions of reading a malformed journal or chunk."""

_REDIS_PATIENCE_S = 30.0
"""A reader that can't read the log for so long gives its client an error."""
_RETRY_S = 0.2
_PAGE_BYTES = 1 << 15
"""About what a page takes, and what waits for a slow client before it falls behind."""
_PAGE_ENTRIES = 16
"""In the first page; later ones are as long as their entries allow."""
_MOST_ENTRIES = 256
_RECORD_BYTES = 200
"""About what a record of the journal takes in memory beside its text."""
_MOST_KEPT = 64
"""Frames that wait for a page."""
_FIRST_LOOK_S, _MOST_LOOK_S = 1.0, 10.0
"""After so long without a frame, and at most so long between two looks, its position is asked."""


class ReadMode(Enum):
    """What a reader delivers of each entry."""

    CHUNKS = "chunks"
    """The client's bytes of a streamed answer."""
    DELTAS = "deltas"
    """The growing text of an answer that is not streamed."""
    END = "end"
    """Only how the job ended. Such a reader has no place in the log."""


class LogEvent(NamedTuple):
    """What a reader delivers of an entry."""

    number: int
    """The entry's; 0: the end was found in the record."""
    event: str
    """The name of an event (shared/job/log.py); empty: nothing but output."""
    output: Any
    """CHUNKS: bytes for the client; DELTAS: the journal's records."""
    details: Sequence[Any] = ()
    """What belongs to the event."""

    @property
    def last(self) -> bool:
        """Nothing follows."""
        return self.event in ENDS

    @property
    def is_streamed(self) -> bool:
        """The answer is complete with this output."""
        return self.last and len(self.details) > 1 and bool(self.details[1])


class _State(Enum):
    """Where a reader's next entry comes from."""

    LIVE = "live"
    """From the next frame."""
    UNWATCHED = "unwatched"
    """From a page, once the gateway watches the job (again)."""
    BEHIND = "behind"
    """From a page. Frames are dropped: the log has them."""
    READING = "reading"
    """From the page that is being read. Frames wait until that is done."""
    DONE = "done"
    """The end was taken, or something has failed: there is none."""


# These are compared for every token, and a global is cheaper than an attribute of a class.
_LIVE, _BEHIND, _DONE = _State.LIVE, _State.BEHIND, _State.DONE
_UNWATCHED, _READING = _State.UNWATCHED, _State.READING
_CHUNKS = ReadMode.CHUNKS


class Reader:
    """The log of one job behind entry number `after`, for one client.

    If the last entry has that number it is delivered all the same: the client may have had the
    output that came with the end, and not the end.
    """

    __slots__ = (
        "_buffered_bytes",
        "_client_left",
        "_decoder",
        "_doubts",
        "_events",
        "_failing_since",
        "_had_output",
        "_holder",
        "_kept",
        "_look_at",
        "_look_s",
        "_looked_at",
        "_mode",
        "_notified",
        "_page_entries",
        "_relay",
        "_skip",
        "_state",
        "_void",
        "_waiter",
        "_writer",
        "failure",
        "generation",
        "job_id",
        "last_write_at",
        "number",
        "queued",
        "shard",
        "wake_at",
        "with_events",
    )

    def __init__(
        self,
        relay: Relay,
        job_id: str,
        mode: ReadMode,
        *,
        after: int = 0,
        is_new: bool = False,
        with_events: bool = False,
    ) -> None:
        """`is_new`: this gateway submits the job, so all frames come here; else it reads what there
        is. `with_events`: a client reads the job's events, so those without output count, too."""
        self.job_id = job_id
        self.shard = shard_in(job_id)
        self.generation = self.number = 0
        """Of the last entry that was taken."""
        self.last_write_at = 0.0
        """When its client was last sent part of the answer, on the monotonic clock; 0: not yet."""
        self.queued: asyncio.Future[Any] | None = None
        """Done when the job is in the queue; None: it was when the reader was made."""
        self.wake_at = inf
        """When the relay is to call `on_wakeup`, on the monotonic clock."""
        self.with_events = with_events
        self._relay = relay
        self._mode = mode
        self._skip = after
        self._void = 0  # up to this entry the log has answers that have begun anew
        self._state = _LIVE if is_new else _UNWATCHED
        self._decoder = DeltaDecoder()  # as it is behind entry `number`
        self._had_output = False  # of what was taken
        self._kept: list[Entry] = []  # what came while a page was read
        self._page_entries = _PAGE_ENTRIES
        self._holder: int | None = None  # generation of the worker that has the job
        self._doubts = False  # a page had nothing
        self._events: list[LogEvent] = []
        self._buffered_bytes = 0
        self._failing_since: float | None = None
        self.failure: Exception | None = None
        """What `next` raises."""
        self._client_left = False
        self._writer: ChunkWriter | None = None
        self._notified = False  # there is something for `next`
        self._waiter: asyncio.Future[None] | None = None
        self._looked_at = START  # its position at the last look
        self._look_at, self._look_s = 0.0, _FIRST_LOOK_S
        if not is_new:
            relay.watch(self)

    # --- frames, from the relay ---

    def on_frame(self, frame: Frame) -> None:
        """Called by the relay with each frame of this job."""
        _, generation, number, _, items, event = frame
        if (
            event is not None
            or number != self.number + 1
            or generation != self.generation
            or self._state is not _LIVE
            or self._mode is not _CHUNKS
        ):
            self._on_other_frame(frame)
            return
        decoder = self._decoder
        try:
            # As `decode`, without a call: this runs for every token.
            if items is not None and len(items) == 1 and type(text := items[0]) is bytes:
                decoder.before = data = decoder.head + text + decoder.tail
            else:
                data = decoder.decode(items or ())
        except MALFORMED as error:
            self._malformed(error)
            return
        self.number = number
        if not data:
            return
        self._had_output = True
        written = False
        try:
            if (writer := self._writer) is not None and not self._events:
                written = writer.write(data)
        except Exception as error:  # how much was written is not known
            self.fail(error)
            return
        if not written:
            self._buffer(LogEvent(number, "", data), len(data))
            return
        relay = self._relay
        if self.last_write_at:
            gap = relay.now - self.last_write_at
            relay.gaps[gap] = relay.gaps.get(gap, 0) + 1
        self.last_write_at = relay.now

    def _on_other_frame(self, frame: Frame) -> None:
        """Any frame but the next chunk of a live stream."""
        _, generation, number, journal, items, event = frame
        name, details = (event[0].decode(), event[1:]) if event else ("", ())
        state = self._state
        if self._mode is ReadMode.END:
            if name in ENDS and state is not _DONE:
                self._end(LogEvent(number, name, b"", details))
        elif state is _LIVE:
            self._on_entry(generation, number, journal, items or (), name, details)
        elif state in (_READING, _UNWATCHED) and len(self._kept) <= _MOST_KEPT:
            position = Position(generation, number)
            self._kept.append(Entry(position, journal, items or (), name, details))

    def _on_entry(
        self,
        generation: int,
        number: int,
        journal: Journal,
        items: Sequence[Item],
        event: str,
        details: Sequence[Any],
    ) -> None:
        """A live entry."""
        own = self.generation
        if generation < own or (generation == own and number <= self.number):
            return  # a repetition, or of an earlier attempt
        if not self._follows(generation, number, event):
            self._relay.count_gap()
            self._fall_behind()
            return
        try:
            self._take(generation, number, journal, items, event, details)
        except StreamReset as error:
            self.fail(error)
        except MALFORMED as error:
            self._malformed(error)

    def _malformed(self, error: Exception) -> None:
        self._relay.report_malformed(self.job_id, error)
        self.fail(StreamReset("The log of this job can't be decoded."))

    @property
    def position(self) -> Position:
        """Of the last entry that was taken."""
        return Position(self.generation, self.number)

    def _follows(self, generation: int, number: int, event: str) -> bool:
        own = self.generation
        return number == self.number + 1 and (
            generation == own or (event != "" and generation > own)
        )

    def _take(
        self,
        generation: int,
        number: int,
        journal: Journal,
        items: Sequence[Item],
        event: str,
        details: Sequence[Any],
    ) -> None:
        """Take the next entry. Raises StreamReset, or one of MALFORMED."""
        was_sent = number <= self._skip
        is_void = not was_sent and number <= self._void
        if event == EventName.RESTARTED:
            if self._had_output and not was_sent:
                raise StreamReset("This answer has begun anew; send the request again.")
            self._had_output, self._decoder = False, DeltaDecoder()
        if self._mode is _CHUNKS:
            output: Any = self._decoder.decode(items)
            size = len(output)
        else:
            output = read_journal(journal, items)
            size = sum(_RECORD_BYTES + len(getattr(each, "text", "")) for each in output)
        self.generation, self.number = generation, number
        self._had_output |= bool(output) and not is_void
        if event in ENDS:
            if number < self._skip:  # the client has entries that are not there
                raise lacks_entries()
            self._end(LogEvent(number, event, output, details))
        elif not (was_sent or is_void) and (output or (event and self.with_events)):
            self._buffer(LogEvent(number, event, output, details), size)

    def _buffer(self, event: LogEvent, size: int) -> None:
        self._events.append(event)
        self._buffered_bytes += size
        if self._buffered_bytes > _PAGE_BYTES and self._state is _LIVE:
            # A slow client: what follows stays in the log, not in this process's memory.
            self._state = _BEHIND
        self._notify()

    def _end(self, event: LogEvent) -> None:
        self._events.append(event)
        self._state = _DONE
        self._notify()

    # --- pages of the log ---

    def resync(self) -> None:
        """Frames may have been lost, or Redis may have lost entries: watch the job again, and read
        the log from the last entry on."""
        if self._state is not _DONE:
            self._state = _UNWATCHED
            self._kept = []
            self._relay.watch(self)

    def on_watched(self, watched: Watched | None) -> None:
        """The gateway watches the job now; None: there is no such job."""
        if self._state is not _UNWATCHED:
            return
        self._failing_since = None
        if watched is None:
            self.fail(StreamReset("The queue has lost this job."))
        elif self._mode is ReadMode.END:
            self._state = _LIVE
            if watched.state.terminal:
                self._end(LogEvent(0, watched.state, b""))
        elif watched.has_log:
            self._holder, self._void = watched.holder, watched.start
            self._fall_behind()
        elif self.number or self._skip:
            self.fail(lacks_entries())
        else:  # no worker has had it
            self._go_live()

    @property
    def is_unwatched(self) -> bool:
        """It waits until the gateway watches its job."""
        return self._state is _UNWATCHED

    @property
    def is_behind(self) -> bool:
        """A page is to be read next."""
        return self._state is _BEHIND

    async def read_page(self) -> None:
        """Read what follows, or a part of it. Raises StoreError."""
        after = self.position
        asked, self._state = self._page_entries, _READING
        kept: list[Entry] = []
        self._kept = kept
        try:
            entries = await self._relay.queue.read(self.job_id, after, asked)
            self._failing_since = None
            if self._state is not _READING or self._kept is not kept:
                return  # what was read is of before a loss
            self._state = _BEHIND
            self._take_page(after, entries, asked)
        except StreamReset as error:
            self.fail(error)
        except MALFORMED as error:
            self._malformed(error)
        finally:
            if self._state is _READING and self._kept is kept:
                self._state = _BEHIND

    def _take_page(self, after: Position, entries: Sequence[Entry], asked: int) -> None:
        if not entries:
            # It was removed just now, or Redis has lost it: a worker that has the job under the
            # same generation sends it again, or loses the job.
            if self._doubts and self._holder != self.generation:
                raise lacks_entries()
            self._doubts = True
            self._state = _UNWATCHED
            self._relay.watch(self, after_s=_RETRY_S)
            return
        self._doubts = False
        if after != START:
            if entries[0].position != after:
                raise lacks_entries()
            entries = entries[1:]
            asked -= 1
        for (generation, number), journal, items, event, details, _ in entries:
            if not self._follows(generation, number, event):
                raise StreamReset("The log of this job has lost entries.")
            self._take(generation, number, journal, items, event, details)
            if self._state is _DONE:
                return
        if len(entries) < asked:
            self._go_live()
            return
        self._kept = []  # the log has these
        if self._buffered_bytes > _PAGE_BYTES:
            self._page_entries = max(2, self._page_entries // 2)
        elif self._buffered_bytes < _PAGE_BYTES // 2:
            self._page_entries = min(_MOST_ENTRIES, 2 * self._page_entries)

    def _fall_behind(self) -> None:
        self._state = _BEHIND
        self._notify()

    def _go_live(self) -> None:
        """All of the log was taken; frames that came meanwhile follow."""
        if self.number < self._skip:
            self.fail(lacks_entries())
            return
        self._state = _LIVE
        kept, self._kept = self._kept, []
        for (generation, number), journal, items, event, details, _ in kept:
            if self._state is _LIVE:
                self._on_entry(generation, number, journal, items, event, details)
        if len(kept) > _MOST_KEPT and self._state is _LIVE:
            self._fall_behind()

    # --- looks at its position: frames may be lost while the connection is not ---

    def is_to_be_looked_at(self, now: float) -> bool:
        """Whether to ask for the job's position now: no frame has come for a while."""
        if self._state is not _LIVE or (self.queued is not None and not self.queued.done()):
            return False
        position = self.position
        if position != self._looked_at or not self._look_at:
            self._looked_at, self._look_s = position, _FIRST_LOOK_S
            self._look_at = now + _FIRST_LOOK_S
            return False
        if now < self._look_at:
            return False
        self._look_s = min(2 * self._look_s, _MOST_LOOK_S)
        self._look_at = now + self._look_s
        return True

    def on_position(self, position: Position | None) -> None:
        """The id of the log's last entry, as it was asked for; None: there is no such job."""
        own = self.position
        if self._state is not _LIVE or own != self._looked_at or position == own:
            return
        if self._mode is ReadMode.END and position is not None:
            # Its steps are not published: only the record says whether it has ended.
            self.generation, self.number = self._looked_at = position
        self.resync()

    # --- what ends or interrupts a wait ---

    def client_left(self) -> None:
        """End the wait of `next` and the use of its writer."""
        self._client_left = True
        self._writer = None
        self._notify()

    def close(self) -> None:
        """It gets no more frames."""
        self._state = _DONE

    def fail(self, error: Exception) -> None:
        """Have `next` raise this error, unless it has another one to raise already."""
        self.failure = self.failure or error
        self._state = _DONE
        self._notify()

    def store_failed(self, error: StoreError) -> None:
        """Redis could not be asked; after a while that is an error for the client."""
        now = monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > _REDIS_PATIENCE_S:
            failure = RedisUnavailable("The queue can't be reached; the job may go on.")
            failure.__cause__ = error
            self.fail(failure)

    def on_wakeup(self) -> None:
        """The relay's timer has reached `wake_at`."""
        self.wake_at = inf
        self._wake()

    @property
    def is_current(self) -> bool:
        """`next` has returned all that the log had, and frames follow it."""
        return self._state is _LIVE

    def _notify(self) -> None:
        self._notified = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- delivery ---

    def use_writer(self, writer: ChunkWriter) -> None:
        """Write chunks to another writer while `next` waits; called by the present writer."""
        if not self._client_left:
            self._writer = writer

    async def next(self, silence_s: float, writer: ChunkWriter | None = None) -> list[LogEvent]:
        """The events since the last call; empty after `silence_s` without any, or `client_left`.

        While this waits, chunks in order go straight to `writer`, as long as it accepts them.
        Raises what `fail` was given, StreamReset if the log lacks what was delivered already,
        RedisUnavailable if the log is needed and could not be read for a while.
        """
        began, loop = monotonic(), asyncio.get_running_loop()
        while True:
            self._writer = writer
            try:
                # A future, in one coroutine: thousands wait here, most of the time, and
                # `asyncio.timeout` around an Event costs several times as much.
                while not self._notified:
                    until = max(began, self.last_write_at) + silence_s
                    if until <= monotonic():
                        await asyncio.sleep(0)  # a caller that waits for no time lets others run
                        break
                    self._waiter = loop.create_future()
                    if until < self.wake_at:  # else it is woken before, and waits on
                        self.wake_at = until
                        self._relay.schedule_wakeup(until)
                    await self._waiter
            finally:
                self._writer = self._waiter = None
            self._notified = False
            if not self._events and self.is_behind and not self._client_left:
                await self._read_or_retry()
            if self.failure is not None:
                raise self.failure
            events = self.take()
            silent = max(began, self.last_write_at) + silence_s <= monotonic()
            if events or silent or self._client_left:
                return events

    def take(self) -> list[LogEvent]:
        """The events that wait for the client."""
        events, self._events = self._events, []
        self._buffered_bytes = 0
        if self._state is _BEHIND:
            self._notified = True  # the next page is read when these are delivered
        return events

    async def _read_or_retry(self) -> None:
        memory.return_soon()
        try:
            await self.read_page()
        except StoreError as error:
            self.store_failed(error)
            await asyncio.sleep(_RETRY_S)


def lacks_entries() -> StreamReset:
    """The error for a log that has lost what a client has got, or that never had it."""
    return StreamReset("The log of this job lacks what its client has got already.")
