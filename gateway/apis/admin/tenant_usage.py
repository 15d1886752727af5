"""What each tenant has used in the last hour, from the jobs that are kept."""

from __future__ import annotations

from typing import Any

from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.states import JobState
from shared.store.redis.job_queue import JobQueue

USAGE_S = 3600.0
"""The time for which usage is summed."""
_MOST_READ = 1000
"""Jobs of one tenant that are read."""


async def usage(queue: JobQueue, tenant: str, now_s: float) -> dict[str, Any]:
    """The tenant's jobs of the last hour. `complete` is false if there were too many to read."""
    since_s = now_s - USAGE_S
    window = JobFilter("", since_s=since_s)
    found = await search(queue, [tenant], window, None, _MOST_READ, _MOST_READ)
    used = [job.usage for job in found.jobs if job.usage]
    return {
        "since": round(since_s, 1),
        "requests": len(found.jobs),
        "failed": sum(job.state is JobState.FAILED for job in found.jobs),
        "prompt_tokens": sum(each["prompt_tokens"] for each in used),
        "completion_tokens": sum(each["completion_tokens"] for each in used),
        "complete": found.cursor is None,
    }
