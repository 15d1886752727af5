"""Repairs what is damaged in Redis, and removes records that are no longer used.

Leases, deadlines and the index of running jobs are not repaired here but by
shared/store/redis/reaper.py, which runs in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping

from shared.job.replies import Repaired
from shared.store.interface import StoreUnavailable
from shared.store.redis.depths import pool_names
from shared.store.redis.durability import rewrite_log_once
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.maintenance_runs import MaintenanceRuns
from shared.store.redis.scan import Step, scan_shards
from shared.store.redis.unused_models import UnusedModels

log = logging.getLogger("flotilla.maintenance")

STEPS_PER_ROUND = 200
ROUND_S = 5.0
"""Longest time of one round; the other Celery tasks wait meanwhile."""
_MAX_IDS_LOGGED = 5


class Housekeeping:
    """Repairs and pruning; each round continues the scans where the last one stopped."""

    def __init__(self, queue: JobQueue, registry: Registry) -> None:
        self._queue = queue
        self._registry = registry
        self._runs = MaintenanceRuns(queue.servers)
        self._scans: dict[range, AsyncIterator[Step]] = {}  # by the shards that share a client

    async def repair(self) -> None:
        """Continue the scan over all jobs and what refers to them, and repair what is inconsistent.

        A waiting job whose stream entry was lost gets a new one; entries, index members and logs
        of deleted jobs are removed. A small fleet is scanned in one round. A Redis that was
        started writes its append-only file anew. Raises StoreError, after all servers were tried.
        """
        done: dict[str, Repaired] = {}
        lost: Exception | None = None
        groups = self._queue.servers.groups
        for redis in self._queue.servers.all:
            with contextlib.suppress(StoreUnavailable):
                await rewrite_log_once(redis)
        began_s = asyncio.get_running_loop().time()
        try:
            for number, shards in enumerate(groups, 1):
                try:
                    await self._continue(shards, done, began_s + ROUND_S * number / len(groups))
                except StoreUnavailable as error:  # the other servers are still repaired
                    lost = error
        finally:
            if done:
                log.warning("repaired: %s", _summary(done))
        if lost is not None:
            raise lost

    async def _continue(self, shards: range, done: dict[str, Repaired], until_s: float) -> None:
        """Do some more steps of a scan, or start a new one if the last has ended."""
        clock = asyncio.get_running_loop().time
        # Put back only at the end: a generator that has raised can't be continued.
        steps = self._scans.pop(shards, None) or scan_shards(self._queue, shards)
        for _ in range(max(1, STEPS_PER_ROUND // len(self._queue.servers.groups))):
            step = await anext(steps, None)
            if step is None:
                return
            if step.members:
                _add(done, await self._queue.repair(*step))
            if clock() > until_s:
                break
        self._scans[shards] = steps

    async def prune(self, pools: Collection[str], tasks: Collection[str]) -> None:
        """Remove records of workers, models, pools and maintenance tasks that no longer exist.

        `pools` are the names of the autoscaled pools, `tasks` the names of all tasks.
        Raises StoreError.
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
        found = [_count(n, f"{what} records") for what, n in dropped.items() if n]
        if found:
            log.info("removed stale records: %s", ", ".join(found))


def _add(done: dict[str, Repaired], more: Mapping[str, Repaired]) -> None:
    for what, repaired in more.items():
        before = done.get(what, Repaired(0, ()))
        ids = (before.ids + repaired.ids)[:_MAX_IDS_LOGGED]
        done[what] = Repaired(before.times + repaired.times, ids)


def _summary(done: Mapping[str, Repaired]) -> str:
    """`1 stray log (job_1), 9 entries (job_3, ...)`."""
    parts = []
    for what, (times, ids) in done.items():
        more = ", ..." if len(ids) < times else ""
        parts.append(f"{_count(times, what)} ({', '.join(ids)}{more})")
    return ", ".join(parts)


def _count(n: int, what: str) -> str:
    if n == 1:
        what = f"{what[:-3]}y" if what.endswith("ies") else what.removesuffix("s")
    return f"{n} {what}"
