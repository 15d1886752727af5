"""Jobs as they are in their records, for tests of what the gateway makes of them."""

from __future__ import annotations

from typing import Any

from shared.job.job import Attempt, Job
from shared.job.states import JobState

JOB_ID = "job_000" + "0" * 23 + "1"
NOW = 1_000_000.0


def job(**changes: Any) -> Job:
    """A queued job that was submitted ten seconds before NOW."""
    fields: dict[str, Any] = {
        "id": JOB_ID,
        "state": JobState.QUEUED,
        "tenant": "team",
        "pool": "qwen",
        "lane": "default",
        "model": "qwen3-8b",
        "endpoint": "/v1/chat/completions",
        "stream": True,
        "created_at": NOW - 10,
        "started_at": None,
        "finished_at": None,
        "deadline_at": None,
        "queue_deadline_s": None,
        "run_deadline_s": None,
        "total_deadline_s": None,
        "retried_from": "",
        "ttl_s": 900.0,
        "attempts": (),
        "metadata": {},
        "error_code": "",
        "status": 0,
        "content_type": "",
        "result": b"",
        "usage": None,
        "created_us": int((NOW - 10) * 1e6),
    }
    return Job(**(fields | changes))


def attempt(
    worker: str, start: float, end: float | None, outcome: str, entries: int | None = None
) -> Attempt:
    """An attempt; the times are seconds after NOW."""
    return Attempt(worker, NOW + start, None if end is None else NOW + end, outcome, entries)
