"""A tenant's jobs, page by page."""

from __future__ import annotations

from shared import keys
from shared.job import Job, checked_shard
from shared.queue import JobQueue
from shared.record import parse_job


async def page(
    queue: JobQueue, tenant: str, before: int | None, limit: int
) -> list[tuple[int, str, Job | None]]:
    """`(created_us, id, job)` of at most `limit` jobs before that time, newest first.

    A job is None when it has expired; its place in the index is swept. Raises redis' errors if any
    server is away.
    """
    upper = "+inf" if before is None else f"({before}"
    ask = queue.servers.ask()
    for shard in range(queue.shards):
        ask.of(shard).zrevrangebyscore(
            keys.jobs(shard, tenant), upper, "-inf", start=0, num=limit, withscores=True
        )
    found = sorted(
        ((int(score), job_id.decode()) for part in await ask.answers() for job_id, score in part),
        reverse=True,
    )[:limit]
    ask = queue.servers.ask()
    for _, job_id in found:
        shard = checked_shard(job_id)
        ask.of(shard).hgetall(keys.job(shard, job_id))
    hashes, sweep = await ask.answers(), queue.servers.ask()
    rows = []
    for (created_us, job_id), raw in zip(found, hashes, strict=True):
        rows.append((created_us, job_id, parse_job(job_id, raw) if raw else None))
        if not raw:
            shard = checked_shard(job_id)
            sweep.of(shard).zrem(keys.jobs(shard, tenant), job_id)
    await sweep.answers()
    return rows
