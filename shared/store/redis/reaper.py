"""The reaper: takes jobs from silent workers, expires jobs past their deadline, cancels those that
no client follows any more, requeues those that are in no queue, sweeps the index.

Every gateway and every worker runs one; a short lock in Redis lets one of them work at a time. All
it does is idempotent, so the lock saves effort and is not needed for correctness.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from shared.job.states import JobState
from shared.platform.logs import RareWarning
from shared.platform.metrics.losses import ReaperMetrics
from shared.platform.tasks import run_together
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.redis_client import server_name

log = logging.getLogger("flotilla.reaper")


# Share of a lease: a longer time between two rounds means that Redis stood still, or was away.
# Rounds are at most 1.25 quarters of a lease apart, and a holder renews after each third.
_STOOD_STILL = 0.5
_LOCK = 0.7
"""Share of the interval that the lock lasts; it ends before the same process' next round."""
_SWEEP_S = 10.0
_AT_ONCE = 200
"""Jobs in one call: Redis serves no other call meanwhile."""


class Reaper:
    """Call `run` as a task; it ends by cancellation."""

    def __init__(self, queue: JobQueue, lease_s: float, metrics: ReaperMetrics) -> None:
        self._queue = queue
        self._metrics = metrics
        self._lease_s = lease_s
        self._interval_s = min(1.0, lease_s / 4)
        self._swept: dict[int, float] = {}  # by shard, on the monotonic clock

    async def run(self) -> None:
        """Work on each group by itself: a server that is away delays no other's shards."""
        await run_together(*map(self._keep, self._queue.servers.groups))

    async def _keep(self, shards: range) -> None:
        warn, where = RareWarning(log), server_name(self._queue.servers.of(shards[0]))
        while True:
            await asyncio.sleep(self._interval_s * random.uniform(0.75, 1.25))
            try:
                for shard in shards:
                    await self.round(shard)
            except StoreError as error:
                warn("Redis %s is not available: %s", where, error)
            else:
                warn.over("Redis %s is available again", where)

    async def round(self, shard: int = 0) -> None:
        """One pass over a shard."""
        lock_ms, redis = int(self._interval_s * _LOCK * 1000), self._queue.servers.of(shard)
        if not await redis.set(keys.base(shard) + keys.REAPER, 1, nx=True, px=lock_ms):
            return
        # Sent in this order, at once: one wake-up of Redis and one of this process.
        await run_together(
            self._expire(shard),
            self._cancel_unattended(shard),
            self._reap(shard),
            self._check(shard),
        )
        # By time, not by rounds: in most rounds another process holds the lock.
        if time.monotonic() - self._swept.get(shard, -_SWEEP_S) >= _SWEEP_S:
            self._swept[shard] = time.monotonic()
            while await self._queue.sweep(shard, _AT_ONCE) >= _AT_ONCE:
                pass

    async def _expire(self, shard: int) -> None:
        more = True
        while more:
            expired = await self._queue.expire(shard, _AT_ONCE)
            self._metrics.reaped.labels(JobState.EXPIRED).inc(len(expired))
            for job_id in expired:
                log.info("%s expired", job_id)
            more = len(expired) >= _AT_ONCE

    async def _cancel_unattended(self, shard: int) -> None:
        more = True
        while more:
            due, cancelled = await self._queue.cancel_unattended(shard, _AT_ONCE)
            self._metrics.reaped.labels(JobState.CANCELLED).inc(len(cancelled))
            for job_id in cancelled:
                log.debug("%s cancelled: no client follows it", job_id)
            more = due >= _AT_ONCE

    async def _reap(self, shard: int) -> None:
        more = True
        while more:
            reaped = await self._queue.reap(
                shard, self._lease_s, _AT_ONCE, longest_pause_s=self._lease_s * _STOOD_STILL
            )
            for job_id, state in reaped.items():
                self._metrics.reaped.labels(state).inc()
                log.warning("%s was held by a silent worker, now %s", job_id, state)
            more = len(reaped) >= _AT_ONCE

    async def _check(self, shard: int) -> None:
        for job_id, state in (await self._queue.check(shard)).items():
            self._metrics.reaped.labels(state).inc()
            log.warning("%s was in no line and held by no worker, now %s", job_id, state)
