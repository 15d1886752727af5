"""`watch`: send a job's frames to a gateway from now on."""

from __future__ import annotations

from shared.job.states import JobState
from shared.store.redis.scripts.runner import Scripts, text


async def call(
    scripts: Scripts, shard: int, job_id: str, *, gateway: str, follow: bool
) -> JobState | None:
    """The job's state; None if there is no such job.

    `follow`: a client of the gateway sees the answer grow, so the job can't be started anew when
    its worker is lost.
    """
    state = text(await scripts.run("watch", shard, (job_id, gateway, int(follow))))
    return None if state is None else JobState(state)
