"""How a job ends, as its worker reports it; `pack_end` of shared/store/queue.py packs it."""

from __future__ import annotations

from typing import NamedTuple

from shared.job.states import JobState

INLINE_RESULT_BYTES = 64 << 10
"""A longer body is neither sent with the job's last frame nor stored with the end: the worker has
stored it before, in pieces, and a gateway passes these on one by one."""

PIECE_BYTES = 256 << 10
"""The size of every piece but the last. A gateway holds one for each client that reads it."""

MAX_RESULT_BYTES = 64 << 20
"""A longer body is not stored: Redis would stand still while it receives it."""


class JobResult(NamedTuple):
    """How a worker ends a job."""

    error_code: str
    """Empty if it is completed; else it has failed."""
    status: int
    """HTTP status of the response."""
    content_type: str
    body: bytes
    """Empty for a streamed response: its chunks are in the log."""
    prompt_tokens: int
    completion_tokens: int
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the response that the client gets."""
    first_output_s: float = 0.0
    """From the lease to the first output, by the worker's clock; 0: there was none."""
    cached_tokens: int = 0
    """Of the prompt: those that the engine had in its cache."""

    @property
    def state(self) -> JobState:
        """That of the job then."""
        return JobState.FAILED if self.error_code else JobState.COMPLETED

    @property
    def inline(self) -> bytes:
        """The body, if it is stored with the end of the job; else empty."""
        return b"" if len(self.body) > INLINE_RESULT_BYTES else self.body


def n_pieces(size: int) -> int:
    """How many pieces a body of so many bytes has; 0: it is stored with the end of the job."""
    return 0 if size <= INLINE_RESULT_BYTES else -(-size // PIECE_BYTES)


def piece_size(size: int, number: int) -> int:
    """Bytes of the piece with this number, from 0 on, of a body of `size` bytes."""
    return min(PIECE_BYTES, size - number * PIECE_BYTES)


def piece_field(number: int) -> str:
    """The field of the job's record that holds a piece."""
    return f"result:{number}"
