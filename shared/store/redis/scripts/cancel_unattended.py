"""`cancel_unattended`: cancel the jobs that no client has followed for too long."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def call(scripts: Scripts, shard: int, *, limit: int) -> tuple[int, list[str]]:
    """How many were due, at most `limit`, and the ids of those that were cancelled."""
    due, *cancelled = await scripts.run("cancel_unattended", shard, (limit,))
    return due, [job_id.decode() for job_id in cancelled]
