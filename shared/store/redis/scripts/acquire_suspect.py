"""`acquire_suspect`: lease a suspect to a worker that runs nothing and advertises no slots.

Comes from `worker/core/isolation.py`; the job goes on in `worker/core/executor.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.job.advertised_slots import SlotUpdate
from shared.job.job import LeasedJob
from shared.store.redis.scripts.acquire import parse_jobs
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.scripts.submit import unique_token


class AcquiredSuspect(NamedTuple):
    """The reply."""

    in_flight: int
    """Jobs that were assigned to the worker and have not reached it; if any, none was leased."""
    job: LeasedJob | None


async def call(
    scripts: Scripts, shard: int, *, worker: str, count: int, lease_s: float, slots: SlotUpdate
) -> AcquiredSuspect:
    """Withdraw the worker's slots, and lease at most `count` (0 or 1) suspects of `slots.pool`.

    Raises redis' errors.
    """
    lease_ms = int(lease_s * 1000)
    arguments = (slots.pool, worker, count, lease_ms, unique_token(), slots.acknowledged)
    now_us, in_flight, fence_token, *jobs = await scripts.run("acquire_suspect", shard, arguments)
    leased = parse_jobs(now_us, fence_token, *jobs)
    return AcquiredSuspect(int(in_flight), leased[0] if leased else None)
