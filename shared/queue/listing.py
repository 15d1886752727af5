"""A tenant's jobs, page by page. Reads neither the bodies of requests nor the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shared.protocol import keys
from shared.protocol.job import Job, checked_shard
from shared.protocol.record import SUMMARY, read_job
from shared.queue.job_queue import JobQueue

ERROR_BYTES = 1 << 16
"""The answer to a refused request is read for the error in it, unless it is longer."""


async def page(
    queue: JobQueue, tenant: str, before: int | None, limit: int
) -> list[tuple[int, str, Job | None]]:
    """`(created_us, id, job)` of at most `limit` jobs before that time, newest first.

    The jobs come without their results. A job is None when it has expired; its place in the index
    is swept. Raises redis' errors if any server is away.
    """
    upper = "+inf" if before is None else f"({before}"
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).zrevrangebyscore(
            keys.jobs(shard, tenant), upper, "-inf", start=0, num=limit, withscores=True
        )
    found = sorted(
        (
            (int(score), job_id.decode())
            for part in await pipeline.execute()
            for job_id, score in part
        ),
        reverse=True,
    )[:limit]
    pipeline = queue.servers.pipeline()
    for _, job_id in found:
        shard = checked_shard(job_id)
        pipeline.of(shard).hmget(keys.job(shard, job_id), SUMMARY)
    values, sweep = await pipeline.execute(), queue.servers.pipeline()
    rows = []
    for (created_us, job_id), fields in zip(found, values, strict=True):
        job = read_job(job_id, SUMMARY, fields)
        rows.append((created_us, job_id, job))
        if job is None:
            shard = checked_shard(job_id)
            sweep.of(shard).zrem(keys.jobs(shard, tenant), job_id)
    await sweep.execute()
    return rows


async def with_errors(queue: JobQueue, jobs: Sequence[Job]) -> list[Job]:
    """The same jobs; those that the engine refused with their results, which hold the error."""
    refused = [job for job in jobs if job.error_code and job.status]
    pipeline = queue.servers.pipeline()
    for job in refused:
        shard = checked_shard(job.id)
        pipeline.of(shard).hstrlen(keys.job(shard, job.id), "result")
    sizes = await pipeline.execute()
    small = [job for job, size in zip(refused, sizes, strict=True) if 0 < size <= ERROR_BYTES]
    pipeline = queue.servers.pipeline()
    for job in small:
        shard = checked_shard(job.id)
        pipeline.of(shard).hget(keys.job(shard, job.id), "result")
    results = {
        job.id: result or b"" for job, result in zip(small, await pipeline.execute(), strict=True)
    }
    return [
        dataclasses.replace(job, result=results[job.id]) if job.id in results else job
        for job in jobs
    ]
