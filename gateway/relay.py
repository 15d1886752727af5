"""The relay: one Redis subscription per gateway process, fanned out to readers in memory.

Pub/sub is the fast path and may lose messages; the job's log is the truth. A reader counts: a frame
whose number is not the next one makes it read the log, and so does a long silence. What a reader
hands out is always the log from its start, in order, without a gap or a repetition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum
from typing import NamedTuple

from msgpack.exceptions import UnpackException

from shared import keys
from shared import redis as connections
from shared.channel import LAST, FrameKind, decode
from shared.errors import RedisUnavailable, StreamReset
from shared.metrics import GatewayMetrics
from shared.queue import JobQueue
from shared.redis import RedisError
from shared.token_log import Entry

log = logging.getLogger("flotilla.relay")

_RECONNECT_S = (0.05, 0.2, 0.5, 1.0, 2.0)
# A reader that can't read the log waits for Redis so long before it gives its client an error.
_PATIENCE_S = 30.0


class Want(Enum):
    """What a reader hands out."""

    CHUNKS = "chunks"
    """The client's bytes of a streamed answer."""
    DELTAS = "deltas"
    """The growing text of an answer that is not streamed."""
    END = "end"
    """Only how the job ended."""


class Piece(NamedTuple):
    """One log entry, as far as its reader wants it."""

    seq: int
    kind: int
    """A FrameKind."""
    payload: bytes

    @property
    def last(self) -> bool:
        """Nothing follows."""
        return self.kind in LAST


class Reader:
    """One client's view of one job, from the log entry behind number `after` on."""

    __slots__ = (
        "_after",
        "_behind",
        "_bytes",
        "_failing_since",
        "_left",
        "_pieces",
        "_relay",
        "_wake",
        "_want",
        "job_id",
    )

    def __init__(self, relay: Relay, job_id: str, want: Want, after: int) -> None:
        self.job_id = job_id
        self._relay = relay
        self._want = want
        self._after = after
        self._pieces: list[Piece] = []
        self._bytes = 0
        self._behind = False
        self._failing_since: float | None = None
        self._left = False
        self._wake = asyncio.Event()

    def feed(self, piece: Piece) -> None:
        """The relay has a frame for this job."""
        self._pieces.append(piece)
        self._bytes += len(piece.payload)
        if self._bytes > self._relay.buffer_bytes:
            # A slow client: what it has not taken yet waits in the log, not in our memory.
            self.fall_behind()
        self._wake.set()

    def fall_behind(self) -> None:
        """Forget what is buffered; the next read looks at the log."""
        self._pieces.clear()
        self._bytes = 0
        self._behind = True
        self._wake.set()

    def wake(self) -> None:
        """End the wait of `next`: its client has left."""
        self._left = True
        self._wake.set()

    async def next(self, silence_s: float) -> list[Piece]:
        """What has come since; empty after a silence of that length, or after `wake`.

        Raises StreamReset if the log does not hold what was handed out, RedisUnavailable if it had
        to be read and could not be for a while.
        """
        until = asyncio.get_running_loop().time() + silence_s
        while True:
            silent = not await self._woken(until)
            if silent:
                self._behind = True  # is it silence, or a lost frame?
            pieces = await self._read()
            if pieces or silent or self._left:
                return pieces

    async def _woken(self, until: float) -> bool:
        """Wait for a frame or for `wake`; False if the time came first."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _read(self) -> list[Piece]:
        """Everything there is, from memory or, where that is not enough, from the log."""
        pieces = [] if self._behind else self._take()
        while self._behind:
            try:
                pieces += await self._from_log()
            except (RedisError, OSError) as error:
                self._complain(error)
                break
            self._failing_since = None
            pieces += self._take()
        return pieces

    def _take(self) -> list[Piece]:
        """Buffered pieces up to the first gap. What is behind it is dropped: the log has it."""
        pieces, self._pieces = self._pieces, []
        self._bytes = 0
        if self._want is Want.END:
            return [piece for piece in pieces if piece.last]
        taken = []
        for piece in pieces:
            if piece.kind == FrameKind.STARTED:
                taken.append(piece)
            elif piece.seq == self._after + 1:
                self._after = piece.seq
                taken.append(piece)
            elif piece.seq > self._after:
                self._relay.metrics.gaps.inc()
                self._behind = True
                break
        return taken

    async def _from_log(self) -> list[Piece]:
        queue = self._relay.queue
        self._behind = False  # before reading: what falls behind meanwhile must read again
        try:
            if self._want is Want.END:
                last = await queue.last_entry(self.job_id)
                return [self._piece(last)] if last is not None and last.end else []
            entries = await queue.entries(self.job_id, self._after)
            if entries and entries[-1].seq != self._after + len(entries):
                raise StreamReset("The log of this job has lost entries.")
            if not entries and self._after and not await self._still_there():
                raise StreamReset("The log of this job is gone.")
        except (RedisError, OSError):
            self._behind = True
            raise
        if entries:
            self._after = entries[-1].seq
        return [self._piece(entry) for entry in entries]

    async def _still_there(self) -> bool:
        last = await self._relay.queue.last_entry(self.job_id)
        return last is not None and last.seq >= self._after

    def _piece(self, entry: Entry) -> Piece:
        if entry.end:
            return Piece(entry.seq, FrameKind.ENDED, b"")
        if self._want is Want.DELTAS:
            return Piece(entry.seq, FrameKind.DELTAS, entry.journal)
        return Piece(entry.seq, FrameKind.CHUNK, entry.chunk)

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > _PATIENCE_S:
            raise RedisUnavailable("The queue can't be reached; the job may go on.") from error


class Relay:
    """The subscription of one gateway process. Start `run` as a task."""

    def __init__(
        self,
        queue: JobQueue,
        redis_url: str,
        gateway_id: str,
        metrics: GatewayMetrics,
        buffer_bytes: int,
    ) -> None:
        self.queue = queue
        self.metrics = metrics
        self.buffer_bytes = buffer_bytes
        self.connected = asyncio.Event()
        """Set while frames can come; without it readers live on the log alone."""
        self._redis_url = redis_url
        self._channel = keys.tokens_channel(gateway_id)
        self._readers: dict[bytes, list[Reader]] = {}

    def open(self, job_id: str, want: Want, after: int = 0) -> Reader:
        """A reader; open it before the job is submitted or watched, and `close` it."""
        reader = Reader(self, job_id, want, after)
        self._readers.setdefault(job_id.encode(), []).append(reader)
        self.metrics.open_streams.inc()
        return reader

    def close(self, reader: Reader) -> None:
        """The reader's client has all it wants."""
        key = reader.job_id.encode()
        readers = self._readers[key]
        readers.remove(reader)
        if not readers:
            del self._readers[key]
        self.metrics.open_streams.dec()

    async def run(self) -> None:
        """Listen for ever; ends by cancellation."""
        blocking = connections.connect_blocking(self._redis_url)
        failures = 0
        try:
            while True:
                try:
                    async with blocking.pubsub() as subscription:
                        await subscription.subscribe(self._channel)
                        while True:
                            message = await subscription.get_message(timeout=connections.BLOCK_S)
                            if message is None:
                                continue
                            if message["type"] == "message":
                                self._hand_out(message["data"])
                            else:  # Redis confirms the subscription
                                failures = 0
                                self._connect()
                except (RedisError, OSError) as error:
                    if self.connected.is_set():
                        log.warning("subscription lost: %s", error)
                    self.connected.clear()
                    await asyncio.sleep(_RECONNECT_S[min(failures, len(_RECONNECT_S) - 1)])
                    failures += 1
        finally:
            await blocking.aclose()

    def _connect(self) -> None:
        self.connected.set()
        self._all_to_the_log()

    def _all_to_the_log(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.fall_behind()

    def _hand_out(self, message: bytes) -> None:
        try:
            for job_id, seq, kind, payload in decode(message):
                for reader in self._readers.get(job_id, ()):
                    reader.feed(Piece(seq, kind, payload))
        except (ValueError, TypeError, UnpackException) as error:
            # Not a worker's; whatever it stood in for, the log has it.
            log.error("a message that is no frame: %r", error)
            self._all_to_the_log()
