"""Takes the jobs of workers whose process has ended or stands still; see detector.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from shared.platform.metrics.losses import LostWorkerMetrics
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

log = logging.getLogger("flotilla.detector")

_AT_ONCE = 200
"""Jobs in one call: Redis serves no other call meanwhile."""


_REMEMBERED = 1000
"""Silent workers whose return would be counted as a false alarm."""


class LostWorkers:
    """The handler for control channels without a subscriber, and for silent workers."""

    def __init__(
        self,
        queue: JobQueue,
        metrics: LostWorkerMetrics,
        on_gone: Callable[[str], None] = lambda _worker: None,
    ) -> None:
        """`on_gone(worker)` is called for each worker that is not connected any more."""
        self._queue = queue
        self._metrics = metrics
        self._on_gone = on_gone
        self._silent: set[str] = set()  # heartbeats of workers whose jobs were taken for that

    async def reclaim(self, shards: Iterable[int], worker: str) -> None:
        """Take the worker's jobs of these shards. Raises StoreError.

        Where another process has been faster, or the worker has reconnected, nothing is left to do.
        """
        self._on_gone(worker)
        if n_jobs := await self._take(shards, worker):
            log.warning(
                "worker %s has lost its connection to Redis: %d jobs taken from it", worker, n_jobs
            )

    async def reclaim_silent(self, shards: Iterable[int], heartbeat: str) -> None:
        """As `reclaim`, of a worker that is connected and has not changed its heartbeat channel."""
        worker = keys.worker_of_heartbeat(heartbeat)
        n_jobs = await self._take(shards, worker, heartbeat)
        if n_jobs:
            self._on_gone(worker)
            if len(self._silent) >= _REMEMBERED:  # most never return: their machines are gone
                self._silent.pop()
            self._silent.add(heartbeat)
            log.warning("worker %s stands still: %d jobs taken from it", worker, n_jobs)

    def returned(self, heartbeat: str) -> None:
        """The worker had stood still with this heartbeat, and goes on."""
        if heartbeat in self._silent:
            self._silent.discard(heartbeat)
            self._metrics.false_alarms.inc()
            log.warning("worker %s goes on, fenced", keys.worker_of_heartbeat(heartbeat))

    async def _take(self, shards: Iterable[int], worker: str, heartbeat: str = "") -> int:
        taken: dict[str, str] = {}
        for shard in shards:
            more = True
            while more:
                states = await self._queue.reclaim(shard, worker, _AT_ONCE, heartbeat=heartbeat)
                for state in states.values():
                    self._metrics.reaped.labels(state).inc()
                taken |= states
                more = len(states) >= _AT_ONCE
        if taken:
            self._metrics.workers.inc()
        for job_id, state in taken.items():
            log.info("job reclaimed, it is %s now", state, extra={"job_id": job_id})
        return len(taken)
