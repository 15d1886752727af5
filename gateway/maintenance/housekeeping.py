"""Has Redis write its append-only file anew after a start, and removes records that are no longer
used.

Jobs are looked after by shared/store/redis/reaper.py, which runs in every process.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis.depths import pool_names
from shared.store.redis.durability import rewrite_log_once
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.maintenance_runs import MaintenanceRuns
from shared.store.redis.unused_models import UnusedModels

log = logging.getLogger("flotilla.maintenance")


class Housekeeping:
    """The append-only files, and pruning. Methods raise StoreError."""

    def __init__(self, queue: JobQueue, registry: Registry) -> None:
        self._queue = queue
        self._registry = registry
        self._runs = MaintenanceRuns(queue.servers)

    async def rewrite_logs(self) -> None:
        """Have each Redis that was started write its append-only file anew."""
        lost: StoreError | None = None
        for redis in self._queue.servers.all:
            try:
                await rewrite_log_once(redis)
            except StoreUnavailable as error:  # the others are asked all the same
                lost = error
        if lost is not None:
            raise lost

    async def prune(self, pools: Collection[str], tasks: Collection[str]) -> None:
        """Remove records of workers, models, pools and maintenance tasks that no longer exist.

        `pools` are the names of the autoscaled pools, `tasks` the names of all tasks.
        """
        before = await self._registry.known_workers()
        forgotten = await UnusedModels(self._queue, self._registry).expire(pools)
        workers = await self._registry.workers()  # removes those that have expired
        used = {worker.pool for worker in workers} | set(pools)
        used |= {model.pool for model in (await self._registry.models()).values()}
        used |= set(await pool_names(self._queue))
        dropped = {
            "worker": max(0, before - len(workers)),
            "model": forgotten,
            "scale": await self._runs.forget_scales_but(used),
            "task": await self._runs.forget_all_but(tasks),
        }
        found = [f"{n} {what} record{'s' * (n > 1)}" for what, n in dropped.items() if n]
        if found:
            log.info("removed stale records: %s", ", ".join(found))
