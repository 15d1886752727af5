"""The answer of a job, as it is stored: its log, in parts, or the body that ended it."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from shared.job.errors import StreamReset
from shared.job.job import Job, shard_in
from shared.job.log import (
    ENDS,
    MALFORMED,
    START,
    DeltaDecoder,
    Entry,
    EventName,
    Transcript,
    read_journal,
    tokens_in,
)
from shared.job.result import n_pieces, piece_size
from shared.job.states import JobState
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.queue import Queue

LONGEST_S = 5.0
"""As long as a call to a Redis that does not answer."""
_PAUSE_S = 0.05
_PAGE_ENTRIES = 500
"""About 16 KB of tokens."""
_TRANSCRIPT_BYTES = 1 << 19
"""Of a log that is read for its text: about 50,000 tokens. Log probabilities are in it, too."""

_MEMBER = rb'"(?:type|sequence_number)"\s*:\s*(?:"[a-z._]*"|[0-9]+)'
_BEFORE = re.compile(rb'\{\s*(?:%b\s*,\s*)*"response"\s*:\s*(?=\{)' % _MEMBER)
_AFTER = re.compile(rb"\}(?:\s*,\s*%b)*\s*\}\s*\Z" % _MEMBER)
_AFTER_BYTES = 256

Reply = TypeVar("Reply")


async def read_again(read: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply of a read, which is repeated while there is no connection. Raises StoreError."""
    give_up_at = time.monotonic() + LONGEST_S
    while True:
        try:
            return await read()
        except StoreUnavailable as error:
            if isinstance(error, StoreTimeout) or time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(_PAUSE_S)


# --- the log ---


class LogTooLong(Exception):
    """The log has more bytes than its reader takes."""


async def log_parts(
    queue: Queue, job: Job, *, most_bytes: float = math.inf
) -> AsyncIterator[Sequence[Entry]]:
    """The entries of the log, a page at a time. What is before `restarted` is void.

    `most_bytes`: of the log. Raises LogTooLong, StreamReset if Redis has lost a part of the log,
    and StoreError.
    """
    at, found, size = START, 0, 0
    generated: int | None = None
    ended, more = False, True
    while more:
        try:
            async with queue.scripts(shard_in(job.id)).reads_page:
                entries = await queue.read(job.id, at, _PAGE_ENTRIES)
        except MALFORMED as error:
            raise _lost() from error
        more = len(entries) == _PAGE_ENTRIES
        if at != START and (not entries or entries.pop(0).position != at):
            raise _lost()
        size += sum(entry.size for entry in entries)
        if size > most_bytes:
            raise LogTooLong
        for entry in entries:
            if entry.position.number != at.number + 1:
                raise _lost()
            at = entry.position
            found = 0 if entry.event == EventName.RESTARTED else found + tokens_in(entry.journal)
            if entry.event in ENDS:
                ended, generated = True, entry.details[0]
        yield entries  # in the same turn of the event loop
    missing = generated is not None and generated != found
    if missing or (job.state is JobState.COMPLETED and not ended):
        raise _lost()


def _lost() -> StreamReset:
    return StreamReset("The log of this job has lost tokens; submit the request again.")


async def chunks_of(queue: Queue, job: Job) -> AsyncIterator[list[bytes]]:
    """The chunks of an answer that was streamed, a few at a time. Raises as `log_parts`."""
    decoder = DeltaDecoder()
    async for entries in log_parts(queue, job):
        yield [decoder.decode(entry.items) for entry in entries if entry.items]


async def read_transcript(queue: Queue, job: Job) -> Transcript | None:
    """The text and the usage of the answer so far; None if the log is too long.

    Raises StreamReset if Redis has lost a part of the log, and StoreError.
    """
    transcript = Transcript.empty()
    try:
        async for entries in log_parts(queue, job, most_bytes=_TRANSCRIPT_BYTES):
            for entry in entries:
                if entry.event == EventName.RESTARTED:
                    transcript = Transcript.empty()
                transcript.add(read_journal(entry.journal, entry.items))
    except LogTooLong:
        return None
    return transcript


# --- bodies ---


class Body:
    """Bytes, then the stored answer of a job if there is one, then other bytes.

    An answer may have tens of megabytes. It is never parsed, and read from Redis piece by piece, as
    fast as its client takes it: a process holds one piece of it for each client.
    """

    __slots__ = ("_head", "_job", "_queue", "_tail", "size", "whole")

    def __init__(
        self, head: bytes, queue: Queue | None = None, job: Job | None = None, tail: bytes = b""
    ) -> None:
        """`queue` has the answer of `job`, which is behind `head`; without a job there is none."""
        if job is not None and not n_pieces(job.result_bytes):
            head, job = head + job.result, None
        if job is None:
            head, tail = head + tail, b""
        self._head, self._tail = head, tail
        self._queue, self._job = queue, job
        self.whole = head if job is None else None
        """All of it, if none of it has to be read from Redis."""
        self.size = len(head) + (job.result_bytes if job else 0) + len(tail)
        """Length in bytes."""

    async def parts(self) -> AsyncIterator[bytes]:
        """The body. Raises StreamReset if Redis has lost a part of the answer, and StoreError;
        if that is so from the beginning, before the first part."""
        if self._job is None:
            yield self._head
            return
        head = self._head
        async for piece in self._pieces(self._job):
            yield head + piece
            head = b""
        if self._tail:
            yield self._tail

    async def read(self, most_bytes: int) -> bytes | None:
        """All of it, to be parsed; None if it has more bytes than that. Raises as `parts`."""
        if self.size > most_bytes:
            return None
        return b"".join([part async for part in self.parts()])

    async def _pieces(self, job: Job) -> AsyncIterator[bytes]:
        assert self._queue is not None
        for number in range(n_pieces(job.result_bytes)):
            piece = await self._queue.piece(job.id, number)
            if piece is None or len(piece) != piece_size(job.result_bytes, number):
                raise StreamReset("Redis has lost a part of this answer; submit the request again.")
            yield piece


async def final_response(queue: Queue, job: Job) -> Body | None:
    """The response object of a completed job, as the engine made it; None if it has none.

    Raises StreamReset if Redis has lost a part of it, and StoreError.
    """
    if job.state is not JobState.COMPLETED:
        return None
    if job.result_bytes:
        return Body(b"", queue, job)
    last = b""
    async for chunks in chunks_of(queue, job):
        last = chunks[-1] if chunks else last
    _, _, event = last.rstrip(b"\n").rpartition(b"\ndata: ")
    # It may be long, and the members beside it are short, so that it is found without parsing it.
    before, after = _BEFORE.match(event), _AFTER.search(event, max(0, len(event) - _AFTER_BYTES))
    if before is None or after is None:
        raise StreamReset("The answer of this job is no response.")
    return Body(event[before.end() : after.start() + 1])
