"""`reclaim`: take the jobs of a worker that has lost its connection, or stands still."""

from __future__ import annotations

from shared.job.lanes import LANES
from shared.store.redis.scripts.runner import Scripts, job_states


async def call(
    scripts: Scripts, shard: int, worker: str, *, heartbeat: str, limit: int
) -> dict[str, str]:
    """The new states of the jobs that were taken, at most `limit` of each queue: id -> state.

    Nothing is taken from a worker that is subscribed to its control channel, unless it is still
    subscribed to the channel `heartbeat`.
    """
    return job_states(await scripts.run("reclaim", shard, (worker, heartbeat, limit, *LANES)))
