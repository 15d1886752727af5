"""`reject_unreceived`: a worker gives up jobs that were leased to it and never reached it."""

from __future__ import annotations

from collections.abc import Iterable

from shared.job.lanes import LANES
from shared.job.packing import pack
from shared.store.redis.scripts.runner import Scripts, job_states


async def call(
    scripts: Scripts,
    shard: int,
    *,
    pool: str,
    worker: str,
    received: Iterable[str],
    older_than_s: float,
) -> dict[str, str]:
    """The new states of the jobs that were given up: id -> state.

    `received`: the ids of all jobs that the worker holds. A job that was leased or renewed less
    than `older_than_s` ago may still be on its way, so it is left alone.
    """
    arguments = (pool, worker, pack(list(received)), int(older_than_s * 1000), *LANES)
    return job_states(await scripts.run("reject_unreceived", shard, arguments))
