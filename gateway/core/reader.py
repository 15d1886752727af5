"""A reader: delivers the log of one job to one client, in order, without a gap or a repetition.

Token path: gateway/core/relay.py -> here -> answer.py. Where the client keeps up, a chunk
goes on to the connection's ChunkWriter at once, without a task in between.

Live frames may be lost: a frame that is not the next one, and a long silence, make the reader read
the log (log_replay.py). Which entry is next is decided in entry_order.py.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from math import inf
from time import monotonic
from typing import Any, Protocol

from gateway.core.entry_order import MALFORMED, EntryOrder
from gateway.core.log_event import LogEvent, ReadMode
from gateway.core.log_replay import Replayed, replay
from gateway.http.asgi_io import ChunkWriter
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.frames import LAST, Frame, FrameKind
from shared.job.packing import pack
from shared.store.interface import Store, StoreError

_REDIS_PATIENCE_S = 30.0
"""A reader that can't read the log for so long gives its client an error."""
_EXPANSION = 4
"""A chunk is about so many times as long as its entry in the log (frames.py)."""
_EVENT_BYTES = 200
"""About what an event other than a chunk, or a frame, takes in memory beside its data."""


class ReaderState(Enum):
    """Where a reader's next event comes from."""

    LIVE = "live"
    """From the next frame."""
    BEHIND = "behind"
    """From the log: entries are missing. Frames are dropped, as the log has them."""
    REPLAYING = "replaying"
    """From the log, which is being read. Frames wait until that is done."""
    REPLAYING_STALE = "replaying stale"
    """As REPLAYING, and the log is to be read once more. Frames are dropped: it has them."""


# These are compared for every token, and a global is cheaper than an attribute of a class.
_LIVE, _CHUNKS = ReaderState.LIVE, ReadMode.CHUNKS
_CHUNK, _LAST_CHUNK = int(FrameKind.CHUNK), int(FrameKind.LAST_CHUNK)
_ANY_CHUNK = (_CHUNK, _LAST_CHUNK)


class ReaderHost(Protocol):
    """The part of the relay that readers use."""

    now: float
    """When the latest message came, on the monotonic clock in seconds."""
    gaps: dict[float, int]
    """Seconds between two writes to a client -> how many clients, for the current message."""
    buffer_bytes: int
    """Bytes that one reader may buffer."""

    @property
    def source(self) -> Store:
        """The store that logs are read from."""

    def schedule_wakeup(self, at: float) -> None:
        """Call `on_wakeup` of readers whose `wake_at` has come, at `at` or a little later."""

    def count_gap(self) -> None:
        """A frame was lost."""

    def report_malformed(self, job_id: str, error: Exception) -> None:
        """A frame could not be decoded."""


class Reader:
    """The log of one job from the entry behind number `after` on, for one client."""

    __slots__ = (
        "_buffered_bytes",
        "_client_left",
        "_events",
        "_failure",
        "_host",
        "_loop",
        "_mode",
        "_notified",
        "_order",
        "_redis_failing_since",
        "_state",
        "_unread",
        "_unread_bytes",
        "_waiter",
        "_writer",
        "job_id",
        "last_write_at",
        "queued",
        "wake_at",
    )

    def __init__(self, host: ReaderHost, job_id: str, mode: ReadMode, after: int) -> None:
        self.job_id = job_id
        self.last_write_at = 0.0
        """When its client was last sent part of the answer, on the monotonic clock; 0: not yet."""
        self.queued: asyncio.Future[Any] | None = None
        """Done when the job is in the queue; None: it was when the reader was made."""
        self.wake_at = inf
        """When the relay is to call `on_wakeup`, on the monotonic clock."""
        self._host = host
        self._mode = mode
        self._order = EntryOrder(after)
        # Live frames follow entries that were read: chunks are encoded against their predecessors.
        self._state = ReaderState.BEHIND if after else _LIVE
        self._events: list[LogEvent] = []
        self._buffered_bytes = 0
        self._unread: list[Frame] = []  # frames that came while the log was being read
        self._unread_bytes = 0
        self._redis_failing_since: float | None = None
        self._failure: Exception | None = None
        self._client_left = False
        self._writer: ChunkWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._notified = False  # there is something for `next`
        self._waiter: asyncio.Future[None] | None = None

    # --- frames, from the relay ---

    def on_frame(self, frame: Frame) -> None:
        """Called by the relay with each frame of this job."""
        _, seq, generation, kind, journal, payload = frame
        if kind in _ANY_CHUNK and self._state is _LIVE and self._mode is _CHUNKS:
            try:
                data = self._order.next_chunk(seq, generation, journal, payload)
            except MALFORMED as error:
                self._on_malformed(error)
                return
            if data is not None:
                writer = self._writer if kind == _CHUNK else None  # the last leaves with the end
                written = False
                try:
                    if data and writer is not None and not self._events:
                        written = writer.write(data)
                except Exception as error:  # how much was written is not known
                    self.fail(error)
                    return
                if written:
                    host = self._host
                    if self.last_write_at:
                        gap = host.now - self.last_write_at
                        host.gaps[gap] = host.gaps.get(gap, 0) + 1
                    self.last_write_at = host.now
                else:
                    self._buffer(LogEvent(seq, _CHUNK, data))
                return
        self._on_other_frame(frame)

    def _on_other_frame(self, frame: Frame) -> None:
        """Any frame but the next chunk of a live stream."""
        _, seq, generation, kind, journal, payload = frame
        order, state = self._order, self._state
        if self._mode is ReadMode.END:
            if kind in LAST:
                self._buffer(LogEvent(seq, kind, payload))
        elif kind == FrameKind.STARTED:
            self._buffer(LogEvent(seq, kind, payload))
        elif state is ReaderState.REPLAYING:
            self._unread.append(frame)
            self._unread_bytes += _EVENT_BYTES + len(pack((journal, payload)))
            if self._unread_bytes > self._host.buffer_bytes:
                self.resync()  # Redis is slow: these frames come from the log instead
        elif state is ReaderState.REPLAYING_STALE:
            self._notify()
        elif generation != order.generation:
            self._on_other_attempt(frame, generation)
        elif state is ReaderState.BEHIND:
            self._notify()  # the log has the frame; it may not have been readable before
        elif seq <= order.last_seq:
            pass  # a repetition
        elif seq != order.last_seq + 1:
            self._host.count_gap()
            self.resync()
        elif kind in LAST:
            try:
                order.next_end(seq, journal)
            except StreamReset as error:
                self.fail(error)
                return
            self._buffer(LogEvent(seq, kind, payload))
        else:
            try:
                records = order.next_deltas(seq, journal, payload)
            except MALFORMED as error:
                self._on_malformed(error)
                return
            self._buffer(LogEvent(seq, FrameKind.DELTAS, records))

    def _on_other_attempt(self, frame: Frame, generation: int) -> None:
        if self._order.accept(generation):
            self.on_frame(frame)
        elif generation > self._order.generation:
            self.distrust()  # the log shows whether it continues what was delivered
            self._notify()

    def _on_malformed(self, error: Exception) -> None:
        self._host.report_malformed(self.job_id, error)
        self.distrust()  # how much of the frame was decoded is not known
        self._notify()

    def _buffer(self, event: LogEvent) -> None:
        if event.kind in LAST:
            self._order.ended = True
        self._events.append(event)
        self._buffered_bytes += len(event.payload) if event.kind == _CHUNK else _EVENT_BYTES
        if self._buffered_bytes > self._host.buffer_bytes:
            # A slow client: what follows stays in the log, not in this process's memory.
            self._set_behind()
        self._notify()

    # --- what ends or interrupts a wait ---

    def resync(self) -> None:
        """Have `next` read the log."""
        self._set_behind()
        self._notify()

    def distrust(self) -> None:
        """The log may lack what was delivered: compare all of it before more is delivered."""
        self._order.read_whole()
        self._set_behind()

    def client_left(self) -> None:
        """End the wait of `next` and the use of its writer."""
        self._client_left = True
        self._writer = None
        self._notify()

    def fail(self, error: Exception) -> None:
        """Have `next` raise this error, unless it has another one to raise already."""
        self._failure = self._failure or error
        self._notify()

    def on_wakeup(self) -> None:
        """The relay's timer has reached `wake_at`."""
        self.wake_at = inf
        self._wake()

    @property
    def is_current(self) -> bool:
        """`next` has returned all that the log had, and frames follow it."""
        return self._state is _LIVE

    @property
    def awaits_end(self) -> bool:
        """The job is in the queue, its end was not delivered or buffered, nothing has failed."""
        done = self._order.ended or self._failure is not None
        return not done and (self.queued is None or self.queued.done())

    def _set_behind(self) -> None:
        if self._state is _LIVE:
            self._state = ReaderState.BEHIND
        elif self._state is ReaderState.REPLAYING:
            self._state = ReaderState.REPLAYING_STALE
            self._unread.clear()

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
        began = monotonic()
        while True:
            self._writer = writer
            try:
                # A future, in one coroutine: thousands wait here, most of the time, and
                # `asyncio.timeout` around an Event costs several times as much.
                while not self._notified:
                    until = max(began, self.last_write_at) + silence_s
                    if until <= monotonic():
                        break
                    self._waiter = self._loop.create_future()
                    if until < self.wake_at:  # else it is woken before, and waits on
                        self.wake_at = until
                        self._host.schedule_wakeup(until)
                    await self._waiter
            finally:
                self._writer = self._waiter = None
            if self._failure is not None:
                raise self._failure
            silent = not self._notified
            self._notified = False
            if silent:
                self._set_behind()  # a frame may have been lost
            events = await self._read()
            if events or silent or self._client_left:
                return events

    async def _read(self) -> list[LogEvent]:
        """The buffered events, then what the log has if frames are missing, or a part of that."""
        events = self._take_buffered()
        while self._state is ReaderState.BEHIND:
            try:
                replayed = await self._replay()
            except StoreError as error:
                self._check_patience(error)
                break
            self._redis_failing_since = None
            events += replayed.events
            events += self._take_buffered()
            if replayed.more:
                self._notified = True  # the rest is read when these are delivered
                break
        return events

    def _take_buffered(self) -> list[LogEvent]:
        events, self._events = self._events, []
        self._buffered_bytes = 0
        return events

    async def _replay(self) -> Replayed:
        self._state, self._unread_bytes = ReaderState.REPLAYING, 0
        most_bytes, more = self._host.buffer_bytes // _EXPANSION, False
        try:
            replayed = await replay(
                self._host.source, self.job_id, self._mode, self._order, most_bytes
            )
            more = replayed.more
            return replayed
        except StoreError:
            self._state = ReaderState.REPLAYING_STALE
            raise
        finally:
            stale = self._state is ReaderState.REPLAYING_STALE
            self._state = ReaderState.BEHIND if stale or more else _LIVE
            unread, self._unread = self._unread, []
            for frame in unread:
                self.on_frame(frame)

    def _check_patience(self, error: Exception) -> None:
        now = monotonic()
        self._redis_failing_since = self._redis_failing_since or now
        if now - self._redis_failing_since > _REDIS_PATIENCE_S:
            raise RedisUnavailable("The queue can't be reached; the job may go on.") from error
