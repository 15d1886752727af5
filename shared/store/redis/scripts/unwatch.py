"""`unwatch`: a gateway has no client any more that follows a job."""

from __future__ import annotations

from shared.job.states import JobState
from shared.store.redis.scripts.runner import Scripts, text


async def call(scripts: Scripts, shard: int, job_id: str, *, gateway: str) -> JobState | None:
    """The job's state after it; None if there is no such job."""
    state = text(await scripts.run("unwatch", shard, (job_id, gateway)))
    return None if state is None else JobState(state)
