"""Suspects: jobs that may have ended their workers, which one worker of a pool runs alone."""

from __future__ import annotations

from shared.job.advertised_slots import SlotUpdate
from shared.job.lanes import SUSPECT_LANE
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts import acquire_suspect, isolate
from shared.store.redis.scripts.acquire_suspect import AcquiredSuspect
from shared.store.redis.scripts.isolate import IsolationStage

LOCK_S = 2.0
"""A worker that holds the isolation and does not renew it for so long has lost it."""


async def waiting(queue: JobQueue, pool: str) -> bool:
    """Whether suspects of the pool wait. Raises redis' errors."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).exists(keys.waiting(shard, pool, SUSPECT_LANE))
    return any(await pipeline.execute())


async def isolate_worker(queue: JobQueue, pool: str, worker: str, stage: IsolationStage) -> bool:
    """Whether the worker may run the pool's suspects now. Raises redis' errors."""
    return await isolate.call(queue.scripts, pool=pool, worker=worker, stage=stage, lock_s=LOCK_S)


async def acquire(
    queue: JobQueue, shard: int, worker: str, count: int, lease_s: float, slots: SlotUpdate
) -> AcquiredSuspect:
    """See scripts/acquire_suspect.lua. Raises redis' errors."""
    return await acquire_suspect.call(
        queue.scripts, shard, worker=worker, count=count, lease_s=lease_s, slots=slots
    )
