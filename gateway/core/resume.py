"""Which part of a stream a client has already: the first events of it. Pure.

An event is a block that ends with an empty line and has a `data:` line; `[DONE]` is one. A block
without such a line is a comment, and does not count. The CRC-32 is over the bytes of the events.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from shared.job.errors import BadRequest, StreamReset


class StreamPosition(NamedTuple):
    """Where a client takes a stream up again."""

    after: int = 0
    """How many events it has."""
    crc32: int | None = None
    """Of their bytes; None: the client did not send it."""
    awaited: bool = False
    """The job may not have made them yet."""
    opening: bytes = b""
    """Those of these events that the stream begins with, at once."""


class ReceivedEvents:
    """Takes the events that a client has off the front of its stream."""

    __slots__ = ("_crc32", "_left", "_rest", "position")

    def __init__(self, position: StreamPosition) -> None:
        self.position = position
        self._left = position.after
        self._crc32 = 0
        self._rest = b""  # the beginning of a block
        if not self._left:
            self._check()

    @property
    def stream_begun(self) -> bool:
        """The client reads a stream already, so an error has to come inside it."""
        position = self.position
        return position.after > 0 or position.crc32 is not None or position.awaited

    @property
    def taken(self) -> int:
        """How many events were taken off."""
        return self.position.after - self._left

    @property
    def complete(self) -> bool:
        """All that the client has was taken off."""
        return self._left == 0

    def behind(self, data: bytes) -> bytes:
        """The rest of the next part of the stream, which the client does not have.

        Raises StreamReset if the events before it are others than those that the client has.
        """
        if self.complete:
            return data
        data, begin = self._rest + data, 0
        while self._left and (end := data.find(b"\n\n", begin) + 2) > 1:
            block, begin = data[begin:end], end
            if block.startswith(b"data:") or b"\ndata:" in block:
                self._crc32 = crc32(block, self._crc32)
                self._left -= 1
        if self._left:
            self._rest = data[begin:]
            return b""
        self._check()
        self._rest = b""
        return data[begin:]

    def rest(self, data: bytes, *, all_read: bool, ended: bool) -> bytes:
        """As `behind`. `all_read`: the log has no more now; `ended`: nor will it.

        Raises BadRequest or StreamReset if the log does not begin with the events the client has.
        """
        data = self.behind(data)
        if all_read:
            self.check_end()
            if ended:
                raise StreamReset("Redis has lost the log of this job.")
        return data

    def check_end(self) -> None:
        """Call it at the stream's end. Raises StreamReset or BadRequest if the client has more."""
        if self.complete or self.position.awaited:
            return
        message = (
            f"`after` is {self.position.after}, but the stream of this job has {self.taken} events"
        )
        if self.position.crc32 is not None:
            raise StreamReset.refused(f"{message}: Redis has lost what came behind them.")
        raise BadRequest(f"{message}.", "after")

    def _check(self) -> None:
        expected = self.position.crc32
        if expected is not None and expected != self._crc32:
            raise StreamReset.refused(
                f"The first {self.position.after} events of this stream have the CRC-32 "
                f"{self._crc32:08x}, not {expected:08x}: this is not the stream that was begun."
            )
