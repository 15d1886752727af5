"""What each tenant has used lately, from the jobs that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.jobs.job_filter import JobFilter
from gateway.jobs.job_search import search
from shared.platform.redis_client import UNAVAILABLE
from shared.protocol import keys
from shared.protocol.states import JobState
from shared.queue.job_queue import JobQueue

USAGE_S = 3600.0
"""Usage is of so long."""
_MOST_READ = 1000
"""Jobs of one tenant that are read."""


class KeptJobs(NamedTuple):
    """A tenant's jobs in the index."""

    number: int
    last_at: float | None
    """When the newest was submitted, Unix seconds."""


async def kept_jobs(queue: JobQueue, tenants: Sequence[str]) -> list[KeptJobs]:
    """The index of each tenant. Raises redis' errors if any server is away."""
    pipeline = queue.servers.pipeline()
    for tenant in tenants:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.jobs(shard, tenant))
            pipeline.of(shard).zrange(keys.jobs(shard, tenant), -1, -1, withscores=True)
    replies = iter(await pipeline.execute(raise_on_error=False))
    found = []
    for _ in tenants:
        count, newest = 0, [0.0]
        for _ in range(queue.shards):
            number, last = next(replies), next(replies)
            for reply in (number, last):
                if isinstance(reply, UNAVAILABLE):
                    raise reply
            if isinstance(number, int) and isinstance(last, list):
                count += number
                newest += [score for _, score in last]
        last_us = max(newest)
        found.append(KeptJobs(count, last_us / 1e6 if last_us else None))
    return found


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
