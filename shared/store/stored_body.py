"""A job's stored answer as a body, or as a part of one: bytes that are passed on and never parsed.

An answer may have tens of megabytes, so it is read from Redis piece by piece, as fast as its client
takes it: a process holds one piece of it for each client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from shared.job.errors import StreamReset
from shared.job.job import Job
from shared.job.result import n_pieces, piece_size
from shared.store.interface import Store


class Body:
    """Bytes, then the stored answer of a job if there is one, then other bytes."""

    __slots__ = ("_head", "_job", "_queue", "_tail", "size", "whole")

    def __init__(
        self, head: bytes, queue: Store | None = None, job: Job | None = None, tail: bytes = b""
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

    async def _pieces(self, job: Job) -> AsyncIterator[bytes]:
        assert self._queue is not None
        for number in range(n_pieces(job.result_bytes)):
            piece = await self._queue.read_piece(job.id, number)
            if piece is None or len(piece) != piece_size(job.result_bytes, number):
                raise StreamReset("Redis has lost a part of this answer; submit the request again.")
            yield piece


async def read_whole(body: Body, most_bytes: int) -> bytes | None:
    """All of a body that is to be parsed; None if it has more bytes than that.

    Raises as `Body.parts`.
    """
    if body.size > most_bytes:
        return None
    return b"".join([part async for part in body.parts()])
