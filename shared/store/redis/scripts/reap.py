"""`reap`: take jobs from workers that have stopped renewing their leases."""

from __future__ import annotations

from shared.job.lanes import LANES
from shared.store.redis.scripts.runner import Scripts, job_states


async def call(
    scripts: Scripts, shard: int, *, lease_s: float, limit: int, longest_pause_s: float | None
) -> dict[str, str]:
    """The new states of the jobs that were taken, at most `limit` of each queue: id -> state.

    `lease_s` is the shortest lease to look at. `longest_pause_s` is the longest time between two
    calls: after a longer one Redis stood still, and leases count from this call on. None: Redis was
    there all the time.
    """
    pause_ms = "" if longest_pause_s is None else int(longest_pause_s * 1000)
    arguments = (int(lease_s * 1000), limit, pause_ms, *LANES)
    return job_states(await scripts.run("reap", shard, arguments))
