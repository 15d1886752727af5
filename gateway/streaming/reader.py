"""A reader: one client's view of one job, in order, without a gap or a repetition.

It counts: a frame whose number is not the next one makes it read the log, and so does a long
silence. It never mixes two attempts of a job in one answer, and an answer whose tokens are not as
many as its worker generated ends in an error. Where a client keeps up, a chunk goes from the
subscription to its connection without a task in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import Enum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.http.asgi_io import ChunkWriter
from shared.api.errors import RedisUnavailable, StreamReset
from shared.platform.redis_client import RedisError
from shared.protocol.chunk_template import DeltaDecoder, Item
from shared.protocol.frames import LAST, Frame, FrameKind
from shared.protocol.job_log import Entry, Journal, read_journal, tokens_in

if TYPE_CHECKING:
    from gateway.streaming.relay import Relay

log = logging.getLogger("flotilla.relay")

# A reader that can't read the log waits for Redis so long before it gives its client an error.
_PATIENCE_S = 30.0
_PIECE_BYTES = 200
"""What a piece takes that is no chunk, about."""


class ReadMode(Enum):
    """What a reader hands out."""

    CHUNKS = "chunks"
    """The client's bytes of a streamed answer."""
    DELTAS = "deltas"
    """The growing text of an answer that is not streamed."""
    END = "end"
    """Only how the job ended."""


class LogEvent(NamedTuple):
    """One log entry, as far as its reader wants it."""

    seq: int
    kind: int
    """A FrameKind."""
    payload: Any
    """Of a CHUNK: bytes for the client; of DELTAS: the journal's records; else as in its frame."""

    @property
    def last(self) -> bool:
        """Nothing follows."""
        return self.kind in LAST


# Each is looked at for every token.
_CHUNK, _LAST_CHUNK, _CHUNKS = int(FrameKind.CHUNK), int(FrameKind.LAST_CHUNK), ReadMode.CHUNKS

_ANY_CHUNK = (_CHUNK, _LAST_CHUNK)


class Reader:
    """One client's view of one job, from the log entry behind number `after` on."""

    __slots__ = (
        "_after",
        "_behind",
        "_bytes",
        "_decoder",
        "_ended",
        "_failing_since",
        "_failure",
        "_generation",
        "_known",
        "_left",
        "_loop",
        "_news",
        "_pieces",
        "_relay",
        "_sink",
        "_start",
        "_tokens",
        "_unread",
        "_waiter",
        "_want",
        "job_id",
        "last_write_at",
        "queued",
        "wake_at",
    )

    def __init__(self, relay: Relay, job_id: str, want: ReadMode, after: int) -> None:
        self.job_id = job_id
        self.last_write_at = 0.0
        """When its client last got something of the answer, on the monotonic clock; 0: not yet."""
        self.queued: asyncio.Future[None] | None = None
        """Done when the job is in the queue; None: it was when the reader was made."""
        self._relay = relay
        self._want = want
        self._start = after
        self._after = after  # number of the last piece that was buffered or handed out
        self._generation = 0  # of the attempt whose entries are handed out; 0: not known yet
        self._tokens = 0  # in the entries from `_start` to `_after`
        self._ended = False
        self._known = 0  # number of the last entry whose chunks were unfolded
        self._decoder = DeltaDecoder()
        self._pieces: list[LogEvent] = []
        self._bytes = 0
        self._behind = False
        self._unread: list[Frame] | None = None  # frames that come while the log is read
        self._failing_since: float | None = None
        self._failure: Exception | None = None
        self._left = False
        self._sink: ChunkWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self.wake_at = inf
        """When it is to be rung because of a silence, on the monotonic clock; the relay looks."""

    def feed(self, frame: Frame) -> None:
        """The relay has a frame for this job."""
        _, seq, generation, kind, journal, payload = frame
        if (
            kind in _ANY_CHUNK
            and seq == self._after + 1
            and generation == self._generation
            and self._known == self._after
            and self._want is _CHUNKS
            and self._unread is None
            and not self._behind
        ):
            try:
                data = self._decoder.decode(payload or ())
                self._tokens += 1 if type(journal) is int else tokens_in(journal)
            except (ValueError, TypeError, LookupError) as error:
                self._misread(error)
                return
            self._after = self._known = seq
            sink = self._sink if kind == _CHUNK else None  # the last one leaves with the end
            if data and sink is not None and not self._pieces and sink.write(data):
                relay = self._relay
                if self.last_write_at:
                    gap = relay.now - self.last_write_at
                    relay.gaps[gap] = relay.gaps.get(gap, 0) + 1
                self.last_write_at = relay.now
            else:
                self._keep(LogEvent(seq, _CHUNK, data))
        elif self._want is ReadMode.END:
            if kind in LAST:
                self._keep(LogEvent(seq, kind, payload))
        elif kind == FrameKind.STARTED:
            self._keep(LogEvent(seq, kind, payload))
        elif generation != self._generation and self._unread is None:
            if self._begin_attempt(generation):
                self.feed(frame)
        elif self._unread is not None:
            self._unread.append(frame)
        elif self._behind:
            self._rouse()  # the log has it; it may not have been readable before
        elif seq <= self._after:
            pass  # it was here before
        elif seq != self._after + 1 or (kind in _ANY_CHUNK and self._want is _CHUNKS):
            self._relay.metrics.gaps.inc()
            self.resync()
        elif kind in LAST:
            if self._tokens_missing(journal):
                self.fail(_incomplete())
                return
            self._after = self._known = seq
            self._keep(LogEvent(seq, kind, payload))
        else:
            self._deltas(seq, journal, payload)

    def _begin_attempt(self, generation: int) -> bool:
        """Switch to the attempt with this generation; whether its entries may be handed out.

        False for an earlier attempt, which was replaced. Once entries were handed out, a later
        attempt fails the reader.
        """
        if generation < self._generation:
            return False
        if self._generation and self._after > self._start:
            self.fail(StreamReset("Another attempt at this job has begun anew."))
            return False
        self._generation = generation
        return True

    def _tokens_missing(self, generated: Any) -> bool:
        """Whether they are not as many as the worker generated, if it ended the job."""
        return self._start == 0 and isinstance(generated, int) and generated != self._tokens

    def _deltas(self, seq: int, journal: Journal, items: Sequence[Item] | None) -> None:
        try:
            records = read_journal(journal, items or ())
            self._tokens += tokens_in(journal)
        except (ValueError, TypeError, LookupError) as error:
            log.error("%s: malformed deltas, reading the log: %r", self.job_id, error)
            self.resync()
            return
        self._after = self._known = seq
        self._keep(LogEvent(seq, FrameKind.DELTAS, records))

    def _misread(self, error: Exception) -> None:
        log.error("%s: a chunk that is none: %r", self.job_id, error)
        self._known = -1  # the log is unfolded anew
        self.resync()

    @property
    def waits(self) -> bool:
        """The job is in the queue, and its end has not come yet."""
        return not self._ended and (self.queued is None or self.queued.done())

    def _keep(self, piece: LogEvent) -> None:
        self._ended = self._ended or piece.kind in LAST
        self._pieces.append(piece)
        self._bytes += len(piece.payload) if piece.kind == _CHUNK else _PIECE_BYTES
        if self._bytes > self._relay.buffer_bytes:
            # A slow client: what it has not taken yet waits in the log, not in our memory.
            self._behind = True
        self._rouse()

    def resync(self) -> None:
        """The next read looks at the log."""
        self._behind = True
        self._rouse()

    def wake(self) -> None:
        """End the wait of `next`, and the use of its sink: its client has left."""
        self._left = True
        self._sink = None
        self._rouse()

    def fail(self, error: Exception) -> None:
        """Nothing will come: `next` raises this."""
        self._failure = error
        self._rouse()

    async def next(self, silence_s: float, sink: ChunkWriter | None = None) -> list[LogEvent]:
        """What has come since; empty after a silence of that length, or after `wake`.

        While this waits, chunks that come in order go straight to `sink`, as long as it takes them.
        Raises what `fail` was given, StreamReset if the log does not hold what was handed out,
        RedisUnavailable if it had to be read and could not be for a while.
        """
        began = monotonic()
        while True:
            self._sink = sink
            try:
                # A future, in one coroutine: thousands wait here, most of the time, and
                # `asyncio.timeout` around an Event costs several times as much.
                while not self._news:
                    until = max(began, self.last_write_at) + silence_s
                    if until <= monotonic():
                        break
                    self._waiter = self._loop.create_future()
                    if until < self.wake_at:  # else it is rung before, and waits on
                        self.wake_at = until
                        self._relay.schedule_wakeup(until)
                    await self._waiter
            finally:
                self._sink = self._waiter = None
            if self._failure is not None:
                raise self._failure
            silent = not self._news
            self._news = False
            if silent:
                self._behind = True  # is it silence, or a lost frame?
            pieces = await self._read()
            if pieces or silent or self._left:
                return pieces

    def use_writer(self, sink: ChunkWriter) -> None:
        """While this `next` waits, chunks go to another sink: for the present one's `write`."""
        if not self._left:
            self._sink = sink

    def ring(self) -> None:
        """The time has come that it asked for."""
        self.wake_at = inf
        self._look_up()

    def _rouse(self) -> None:
        self._news = True
        self._look_up()

    def _look_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _read(self) -> list[LogEvent]:
        """Everything there is: from memory and, where that is not all, from the log."""
        pieces = self._take()
        while self._behind:
            try:
                pieces += await self._from_log()
            except (RedisError, OSError) as error:
                self._complain(error)
                break
            self._failing_since = None
            pieces += self._take()
        return pieces

    def _take(self) -> list[LogEvent]:
        pieces, self._pieces = self._pieces, []
        self._bytes = 0
        return pieces

    async def _from_log(self) -> list[LogEvent]:
        queue = self._relay.queue
        self._behind = False  # before reading: what falls behind meanwhile must read again
        self._unread = []
        try:
            if self._want is ReadMode.END:
                last = await queue.last_entry(self.job_id)
                self._ended = last is not None and bool(last.end)
                return [self._piece(last)] if last is not None and last.end else []
            # Who starts in the middle has to see all envelopes, from the first.
            start = self._after if self._known == self._after else 0
            generation, entries = await queue.read_log(self.job_id, start)
            if start == 0:
                self._decoder = DeltaDecoder()
            if any(entry.lost for entry in entries):
                raise StreamReset("The log of this job has lost entries.")
            if generation != self._generation and entries and not self._begin_attempt(generation):
                raise StreamReset("Another attempt at this job has begun anew.")
            if start + len(entries) < self._after or (not entries and self._after):
                await self._check_still_there()
            pieces = [self._piece(entry) for entry in entries]
            fresh = [piece for piece in pieces if piece.seq > self._after]
            begin = max(self._after, self._start)
            self._tokens += sum(tokens_in(each.journal) for each in entries if each.seq > begin)
            self._after = self._known = start + len(entries)
            if entries and entries[-1].end:
                if self._tokens_missing(entries[-1].tokens):
                    raise _incomplete()
                self._ended = True
        except (RedisError, OSError):
            self._behind = True
            raise
        finally:
            unread, self._unread = self._unread, None
            for frame in unread or ():
                self.feed(frame)
        return fresh

    async def _check_still_there(self) -> None:
        last = await self._relay.queue.last_entry(self.job_id)
        # The end has the number of an entry that was handed out: the log lacks that entry.
        stops_short = last is None or last.seq < self._after
        if stops_short or (last and last.end and last.seq == self._after and not self._ended):
            raise StreamReset("The log of this job lacks what its client has got already.")

    def _piece(self, entry: Entry) -> LogEvent:
        if entry.end:
            return LogEvent(entry.seq, FrameKind.ENDED, b"")
        if self._want is ReadMode.CHUNKS:
            return LogEvent(entry.seq, FrameKind.CHUNK, self._decoder.decode(entry.items))
        return LogEvent(entry.seq, FrameKind.DELTAS, read_journal(entry.journal, entry.items))

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > _PATIENCE_S:
            raise RedisUnavailable("The queue can't be reached; the job may go on.") from error


def _incomplete() -> StreamReset:
    return StreamReset("This answer lacks tokens that its worker has generated.")
