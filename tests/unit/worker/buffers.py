"""Output buffers for the tests of worker/core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.job.job import LeasedJob
from shared.job.result import JobResult
from shared.job.states import JobEvent
from worker.core.output_buffer import OutputBuffer

FENCE_TOKEN = "f-1"
RESULT = JobResult(JobEvent.COMPLETE, "", 200, "text/event-stream", b"", 1, 2)


def make_buffer(
    job_id: str = "a",
    shard: int = 0,
    notify: Callable[[OutputBuffer], None] = lambda _: None,
    *,
    log_started: bool = True,
    **fields: Any,
) -> OutputBuffer:
    """A buffer of a streamed job that was leased under `FENCE_TOKEN`; `fields` are LeasedJob's."""
    defaults: dict[str, Any] = {
        "id": job_id,
        "shard": shard,
        "lease_id": "n" * 16,
        "generation": 1,
        "fence_token": FENCE_TOKEN,
        "attempt": 1,
        "stream": True,
        "endpoint": "/e",
        "body": b"{}",
        "watchers": "gw-1",
        "watched": False,
        "waited_s": 0.0,
    }
    buffer = OutputBuffer(LeasedJob(**(defaults | fields)), notify)
    buffer.log_started = log_started
    return buffer
