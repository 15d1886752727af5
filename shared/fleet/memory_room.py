"""How many bytes may still be accepted into one Redis server. Pure.

A gateway reads a server's memory once in some seconds, or sooner where it accepts much. What is
left above the mark is for what running jobs write: their answers are never refused.

Several gateways see the same room, and none knows what the others accept. Each looks again after an
eighth of it, so that eight of them do not accept more than there is.
"""

from __future__ import annotations

from math import inf
from typing import Final

_RECORD_BYTES: Final = 2048
"""What a waiting job takes beside its body: its record, its entries in a stream and in sets."""
_BODY_FACTOR: Final = 1.25
"""Redis allocates in classes of sizes, a quarter apart."""
_BUFFER_BYTES = 20 << 20
"""What buffers may take at times, as for a call that submits a megabyte. A small server needs it,
too."""
_LOOK_SHARE, _MOST_SHARE = 1 / 8, 1 / 2
_FULL_SHARE = 0.01


def job_bytes(body: int) -> float:
    """What a job takes while it waits. `body`: bytes of its request's body."""
    return _RECORD_BYTES + _BODY_FACTOR * body


class MemoryRoom:
    """Of one server. Without a limit there is room for everything."""

    def __init__(self, mark: float) -> None:
        """`mark`: the share of the limit above which nothing is accepted."""
        self._mark = mark
        self._left = inf
        self._taken = self._before = 0.0  # since the last look, and between the two before
        self.used = self.limit = 0
        """As of the last look, in bytes; no limit: 0."""

    def looked(self, used: int, limit: int) -> None:
        """The server uses so many bytes of its limit (0: it has none) now."""
        self.used, self.limit = used, limit
        most = min(self._mark * limit, limit - _BUFFER_BYTES)
        self._left = max(0.0, most - used) if limit else inf
        # What was accepted just now may not be there yet: it counts until the look after this.
        self._before, self._taken = self._taken, 0.0

    def take(self, n_bytes: float) -> bool:
        """Accept so many bytes; False: there is no room."""
        taken = self._before + self._taken
        # A single large request may take all of it.
        if taken + n_bytes > (self._left * _MOST_SHARE if taken else self._left):
            return False
        self._taken += n_bytes
        return True

    @property
    def why(self) -> str:
        """Why there is no room, in words; for a server with a limit."""
        used = self.used / self.limit
        return f"Redis uses {used:.0%} of its memory; the rest is for answers and buffers"

    @property
    def is_full(self) -> bool:
        """Hardly anything is accepted."""
        return self._left < _FULL_SHARE * self.limit

    @property
    def is_outdated(self) -> bool:
        """So much was accepted, or is full, that the server has to be looked at again."""
        return self._taken >= self._left * _LOOK_SHARE
