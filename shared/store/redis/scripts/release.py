"""`release`: a worker gives up jobs that it can't finish."""

from __future__ import annotations

from collections.abc import Iterable

from shared.job.job import LeasedJob
from shared.store.redis.scripts.runner import Scripts, job_states


async def call(
    scripts: Scripts, shard: int, jobs: Iterable[LeasedJob], *, reason: str, blame: bool
) -> dict[str, str]:
    """The new states of those of the jobs that the worker still held: id -> state.

    `reason` goes into the job's history; `blame` counts the attempt against the job.
    """
    held: list[str] = [word for job in jobs for word in (job.id, job.lease_id)]
    return job_states(await scripts.run("release", shard, (reason, int(blame), *held)))
