"""The jobs of tenants, page by page. Reads neither the bodies of requests nor the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shared.job.job import Job, checked_shard
from shared.job.place import Place
from shared.job.record import SUMMARY, read_job
from shared.job.result import INLINE_RESULT_BYTES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue


async def page(
    queue: JobQueue, tenants: Sequence[str], before: Place | None, limit: int
) -> list[tuple[int, str, Job | None]]:
    """`(created_us, id, job)` of at most `limit` jobs behind that place, newest first.

    The jobs come without their results. A job is None when it has expired; its index entry is
    deleted. Raises StoreError if any server is away.
    """
    found = await _newest(queue, tenants, before, limit)
    pipeline = queue.servers.pipeline()
    for _, job_id, _ in found:
        shard = checked_shard(job_id)
        pipeline.of(shard).hmget(keys.job(shard, job_id), SUMMARY)
    rows, sweep = [], queue.servers.pipeline()
    for (created_us, job_id, tenant), values in zip(found, await pipeline.execute(), strict=True):
        job = read_job(job_id, SUMMARY, values)
        rows.append((created_us, job_id, job))
        if job is None:
            shard = checked_shard(job_id)
            sweep.of(shard).zrem(keys.jobs(shard, tenant), job_id)
    await sweep.execute()
    return rows


async def _newest(
    queue: JobQueue, tenants: Sequence[str], before: Place | None, limit: int
) -> list[tuple[int, str, str]]:
    """`(created_us, id, tenant)` of the tenants' newest jobs, from the indexes."""
    pipeline = queue.servers.pipeline()
    ranges: list[tuple[str | int, str | int, int]] = [("+inf", "-inf", limit)]
    if before is not None:  # all of that microsecond: some of them may have been shown
        us = before.created_us
        ranges = [(us, us, -1), (f"({us}", "-inf", limit)]
    indexes = [
        (shard, tenant, each)
        for shard in range(queue.shards)
        for tenant in tenants
        for each in ranges
    ]
    for shard, tenant, (newest, oldest, most) in indexes:
        pipeline.of(shard).zrevrangebyscore(
            keys.jobs(shard, tenant), newest, oldest, start=0, num=most, withscores=True
        )
    found = []
    for (_, tenant, _), members in zip(indexes, await pipeline.execute(), strict=True):
        for member, score in members:
            job_id = member.decode()
            if before is None or (int(score), job_id) < before:
                found.append((int(score), job_id, tenant))
    return sorted(found, reverse=True)[:limit]


async def with_errors(queue: JobQueue, jobs: Sequence[Job]) -> list[Job]:
    """The same jobs; those that the engine refused with their results, which hold the error, unless
    these are stored in pieces."""
    refused = [
        job for job in jobs if job.error_code and 0 < job.result_bytes <= INLINE_RESULT_BYTES
    ]
    pipeline = queue.servers.pipeline()
    for job in refused:
        shard = checked_shard(job.id)
        pipeline.of(shard).hget(keys.job(shard, job.id), "result")
    results = {
        job.id: result or b"" for job, result in zip(refused, await pipeline.execute(), strict=True)
    }
    return [
        dataclasses.replace(job, result=results[job.id]) if job.id in results else job
        for job in jobs
    ]
