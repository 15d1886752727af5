"""`expire`: end the jobs whose deadline has passed."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def call(scripts: Scripts, shard: int, *, limit: int) -> list[str]:
    """The ids of at most `limit` jobs that the call has ended or found ended."""
    return [
        job_id.decode(errors="replace") for job_id in await scripts.run("expire", shard, (limit,))
    ]
