"""The interface through which the chunks of a streamed answer reach a client's connection."""

from __future__ import annotations

from typing import Protocol


class ChunkWriter(Protocol):
    """A connection that accepts chunks without waiting, as long as its client keeps up."""

    def take(self, data: bytes) -> bool:
        """Write `data` now. False if that is not possible without waiting: nothing was written."""
