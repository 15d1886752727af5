"""`cancel`: end a job that its client does not want any more."""

from __future__ import annotations

from shared.job.states import JobState
from shared.store.redis.scripts.runner import Scripts, text


async def call(scripts: Scripts, shard: int, job_id: str, *, tenant: str) -> JobState | None:
    """The job's state after the call; None if the tenant has no such job."""
    state = text(await scripts.run("cancel", shard, (job_id, tenant)))
    return None if state is None else JobState(state)
