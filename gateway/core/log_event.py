"""What a reader delivers: the entries of a job's log, in the form that its client needs."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from shared.job.frames import LAST


class ReadMode(Enum):
    """What a reader delivers of each entry."""

    CHUNKS = "chunks"
    """The client's bytes of a streamed answer."""
    DELTAS = "deltas"
    """The growing text of an answer that is not streamed."""
    END = "end"
    """Only how the job ended."""


class LogEvent(NamedTuple):
    """One entry of the log, or the start of the job."""

    seq: int
    """The entry's number; 0 for the start, which is no entry."""
    kind: int
    """A FrameKind."""
    payload: Any
    """Of a CHUNK: bytes for the client; of DELTAS: the journal's records; else as in its frame."""

    @property
    def last(self) -> bool:
        """Nothing follows."""
        return self.kind in LAST
