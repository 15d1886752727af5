"""How much of one streamed answer its client has, and what of the bytes that arrive it gets next.

A client gets complete events only, so a stream can go on with the next event on any gateway. The
CRC-32 lets that gateway check that its events up to there are the same.
"""

from __future__ import annotations

import zlib

from shared.client import sse

_INTERRUPTIONS = frozenset({"gateway_stopped", "redis_unavailable"})
"""Codes of errors of one gateway: the job may go on, and another gateway may have its answer."""


class StreamPosition:
    """The position in the answer of one job."""

    def __init__(self, job_id: str, events: int = 0, crc32: int | None = 0) -> None:
        """`events`, `crc32`: what the client has already; None: the CRC-32 is not known."""
        self.job_id = job_id
        self.events = events
        """Events that the client has. Comments are not counted."""
        self.crc32 = crc32
        """The CRC-32 of the bytes of those events, with the empty line after each."""
        self.complete = False
        """The client has the last event of the answer."""
        self.failed = False
        """The client has an error event; more may follow."""
        self.interruption = b""
        """The error event with which a gateway ended the stream; the client does not have it."""
        self._splitter = sse.EventSplitter()

    @property
    def path(self) -> str:
        """Where the rest of the answer is, on every gateway."""
        crc32 = "" if self.crc32 is None else f"&crc32={self.crc32:08x}"
        return f"/jobs/{self.job_id}/stream?after={self.events}{crc32}"

    def feed(self, data: bytes) -> bytes:
        """The complete events and comments that the client gets with these bytes."""
        passed = []
        for block in self._splitter.feed(data):
            if not sse.is_comment(block):
                code = sse.error_code(block)
                if code in _INTERRUPTIONS:
                    self.interruption = block
                    break
                self._count(block, failed=code is not None)
            passed.append(block)
        return b"".join(passed)

    def take_rest(self) -> bytes:
        """What the client gets of a stream that is not resumed: what was held back."""
        rest = self.interruption + self._splitter.rest
        self.restart()
        return rest

    def restart(self) -> None:
        """The stream goes on with the event after `events`: forget what was held back."""
        self.interruption = b""
        self._splitter = sse.EventSplitter()

    def _count(self, event: bytes, *, failed: bool) -> None:
        self.events += 1
        if self.crc32 is not None:
            self.crc32 = zlib.crc32(event, self.crc32)
        self.failed = self.failed or failed
        self.complete = self.complete or sse.is_last(event)
