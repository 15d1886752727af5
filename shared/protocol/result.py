"""How a job ends, as its worker reports it; scripts/emit.py packs it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.protocol.states import JobEvent

INLINE_RESULT_BYTES = 64 << 10
"""A longer body is not sent with the job's last frame: the gateway reads it from the record."""

MAX_RESULT_BYTES = 64 << 20
"""A longer body is not stored: Redis would stand still while it receives it."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a worker ends a job."""

    event: JobEvent
    error_code: str
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
