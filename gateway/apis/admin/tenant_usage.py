"""What each tenant has used lately, from the jobs that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.redis_client import UNAVAILABLE

USAGE_S = 3600.0
"""Usage is of so long."""
_MOST_READ = 1000
"""Jobs of one tenant that are read."""


class Kept(NamedTuple):
    """What is kept of a tenant, as the quotas count it."""

    number: int
    last_at: float | None
    """When the newest was submitted, Unix seconds."""
    conversations: int
    bytes: int
    """Of conversations, and of requests and answers above 4 KiB."""


async def kept_of(queue: JobQueue, tenants: Sequence[str]) -> list[Kept]:
    """What is kept of each tenant, in all shards. Raises redis' errors if any server is away."""
    pipeline = queue.servers.pipeline()
    for tenant in tenants:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.jobs(shard, tenant))
            pipeline.of(shard).zrange(keys.jobs(shard, tenant), -1, -1, withscores=True)
            pipeline.of(shard).zcard(keys.conversations(shard, tenant))
            pipeline.of(shard).zscore(keys.kept(shard, tenant), keys.KEPT_TOTAL)
    replies = iter(await pipeline.execute(raise_on_error=False))
    found = []
    for _ in tenants:
        numbers, newest, conversations, sizes = [], [0.0], [], []
        for _ in range(queue.shards):
            number, last, threads, size = (next(replies) for _ in range(4))
            for reply in (number, last, threads, size):
                if isinstance(reply, UNAVAILABLE):
                    raise reply
            if isinstance(number, int) and isinstance(last, list):
                numbers.append(number)
                newest += [score for _, score in last]
            conversations.append(threads if isinstance(threads, int) else 0)
            sizes.append(int(size) if isinstance(size, float) else 0)
        last_us = max(newest)
        last_at = last_us / 1e6 if last_us else None
        found.append(Kept(sum(numbers), last_at, sum(conversations), sum(sizes)))
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
