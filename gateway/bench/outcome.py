"""What one request of a benchmark has measured."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What one request has measured; seconds."""

    started: float = 0.0
    """When it was sent, by this process's monotonic clock."""
    ttft: float = 0.0
    """Until the first chunk."""
    itl: list[float] = field(default_factory=list)
    """Between one chunk and the next."""
    latency: float = 0.0
    """Until the last chunk with a choice."""
    client_queue_time: float = 0.0
    """How long it was due before it was sent."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    """Why it failed; empty if it was answered."""
    job_id: str = ""
    """Of the fleet's job; empty for another server."""
    queue_wait: float | None = None
    """How long that job was in the queue, if that was asked for."""
    status: int = 0
    """The HTTP status; 0 if there was no answer."""
