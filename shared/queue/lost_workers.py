"""Takes the jobs of workers whose process has ended; see detector.py."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.platform.metrics import LostWorkerMetrics
from shared.platform.servers import shards_on
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.detector")

_AT_ONCE = 200
"""Jobs in one call: Redis serves no other call meanwhile."""


class LostWorkers:
    """The handler for control channels without a subscriber."""

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

    async def reclaim(self, server_index: int, worker: str) -> None:
        """Take the worker's jobs of all shards of a server. Raises redis' errors.

        Where another process has been faster, or the worker has reconnected, nothing is left to do.
        """
        self._on_gone(worker)
        reclaimed: dict[str, str] = {}
        for shard in shards_on(server_index, len(self._queue.servers), self._queue.shards):
            more = True
            while more:
                states = await self._queue.reclaim(shard, worker, _AT_ONCE)
                for state in states.values():
                    self._metrics.reaped.labels(state).inc()
                reclaimed |= states
                more = len(states) >= _AT_ONCE
        if reclaimed:
            self._metrics.workers.inc()
            log.warning(
                "worker %s has lost its connection to Redis: %d jobs taken from it",
                worker,
                len(reclaimed),
            )
        for job_id, state in reclaimed.items():
            log.info("job reclaimed, it is %s now", state, extra={"job_id": job_id})
