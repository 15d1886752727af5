"""`find_ended`: which of some jobs have ended, for readers that may have missed it."""

from __future__ import annotations

from collections.abc import Iterable

from shared.store.redis.scripts.runner import Scripts, job_states


async def call(scripts: Scripts, shard: int, job_ids: Iterable[str]) -> dict[str, str]:
    """Those of the jobs that have ended: id -> state, `gone` if there is no record."""
    return job_states(await scripts.run("find_ended", shard, tuple(job_ids)))
