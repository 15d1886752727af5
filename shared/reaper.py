"""The reaper: takes jobs from silent workers, ends jobs whose time is over, sweeps the index.

Every gateway and every worker runs one; a short lock in Redis lets one of them work at a time. All
it does is idempotent, so the lock saves effort and is not needed for correctness.
"""

from __future__ import annotations

import asyncio
import logging
import random

from shared import keys
from shared.queue import JobQueue
from shared.redis import RedisError

log = logging.getLogger("flotilla.reaper")


_SWEEP_ROUNDS = 10


class Reaper:
    """Call `run` as a task; it ends by cancellation."""

    def __init__(self, queue: JobQueue, lease_s: float) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._interval_s = min(1.0, lease_s / 4)
        self._rounds = 0

    async def run(self) -> None:
        # Leases were not renewed while Redis was away, and their holders need one lease's time to
        # do so before silence means anything. The same holds at start: Redis may just be back.
        grace_s = self._lease_s
        while True:
            await asyncio.sleep(grace_s or self._interval_s * random.uniform(0.75, 1.25))
            grace_s = 0.0
            try:
                await self.round()
            except (RedisError, OSError) as error:
                log.warning("Redis is not available: %s", error)
                grace_s = self._lease_s

    async def round(self) -> None:
        """One pass over all shards."""
        for shard in range(self._queue.shards):
            lock_ms = int(self._interval_s * 1000)
            if not await self._queue.redis.set(keys.reaper(shard), 1, nx=True, px=lock_ms):
                continue
            for job_id in await self._queue.scripts.expire(shard, 100):
                log.info("%s expired", job_id.decode())
            for job, state in (await self._queue.reap(shard, self._lease_s)).items():
                log.warning("%s was held by a silent worker, now %s", job, state)
            if self._rounds % _SWEEP_ROUNDS == 0:
                await self._queue.sweep(shard)
        self._rounds += 1
