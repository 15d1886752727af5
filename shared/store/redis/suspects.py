"""Suspects: jobs that may have ended their workers, which one worker of a pool runs alone."""

from __future__ import annotations

from shared.job.advertised_slots import SlotUpdate
from shared.job.lanes import SUSPECT_LANE
from shared.job.replies import AcquiredSuspect, IsolationStage
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.acquire import parse_suspect
from shared.store.redis.scripts.submit import unique_token

LOCK_SHARD = 0
"""The shard that holds the locks of all pools."""

LOCK_S = 2.0
"""A worker that holds the isolation and does not renew it for so long has lost it."""


async def waiting(queue: JobQueue, pool: str) -> bool:
    """Whether suspects of the pool wait. Raises StoreError."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).exists(keys.waiting(shard, pool, SUSPECT_LANE))
    return any(await pipeline.execute())


async def isolate_worker(queue: JobQueue, pool: str, worker: str, stage: IsolationStage) -> bool:
    """Whether the worker may run the pool's suspects now. Raises StoreError."""
    arguments = (pool, worker, stage.value, int(LOCK_S * 1000))
    return bool(await queue.run("isolate", LOCK_SHARD, arguments))


async def acquire(
    queue: JobQueue, shard: int, worker: str, count: int, lease_s: float, slots: SlotUpdate
) -> AcquiredSuspect:
    """Withdraw the worker's slots, and lease at most `count` (0 or 1) suspects of `slots.pool`.

    Raises StoreError.
    """
    arguments = (
        slots.pool, worker, count, int(lease_s * 1000), unique_token(), slots.acknowledged,
    )  # fmt: skip
    return parse_suspect(await queue.run("acquire_suspect", shard, arguments))
