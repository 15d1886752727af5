"""What the maintenance process do. Each may be done twice, or not at all: the next round does it.

Leases, deadlines and the index do not wait for maintenance: shared/queue/reaper.py runs in every process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping

from gateway.maintenance.scan import Step, scan_server
from shared.fleet.registry import Registry, pool_name
from shared.platform.redis_client import UNAVAILABLE
from shared.protocol import keys
from shared.protocol.scripts.repair import Repaired
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.maintenance")

STEPS_A_ROUND = 200
ROUND_S = 5.0
"""Other maintenance tasks wait meanwhile."""
_KEYS_AT_ONCE = 500
_IDS_TOLD = 5


class Housekeeping:
    """Keeps its place from one round to the next."""

    def __init__(self, queue: JobQueue, registry: Registry) -> None:
        self._queue = queue
        self._registry = registry
        self._scans: dict[int, AsyncIterator[Step]] = {}  # by server

    async def repair(self) -> None:
        """Go on with the walk over all jobs and what leads to them, and put right what is wrong.

        A job that waits is found by workers again although Redis lost its entry; entries, index
        members and logs whose jobs are gone are taken out. A small fleet is walked over in one
        round.
        """
        done: dict[str, Repaired] = {}
        lost: Exception | None = None
        n_servers = len(self._queue.servers)
        began_s = asyncio.get_running_loop().time()
        try:
            for server in range(n_servers):
                try:
                    await self._go_on(server, done, began_s + ROUND_S * (server + 1) / n_servers)
                except UNAVAILABLE as error:  # others are there
                    lost = error
        finally:
            if done:
                log.warning("repaired: %s", _told(done))
        if lost is not None:
            raise lost

    async def _go_on(self, server: int, done: dict[str, Repaired], until_s: float) -> None:
        """Some steps more of a server's walk; the next time it is a new one if that is over."""
        clock = asyncio.get_running_loop().time
        # A generator that has raised has nothing more to give: it is kept if nothing happens.
        steps = self._scans.pop(server, None) or scan_server(self._queue, server)
        for _ in range(STEPS_A_ROUND // len(self._queue.servers)):
            step = await anext(steps, None)
            if step is None:
                return
            if step.members:
                _add(done, await self._queue.repair(*step))
            if clock() > until_s:
                break
        self._scans[server] = steps

    async def prune(self, models: Collection[str], maintenance: Collection[str]) -> None:
        """Take out records of workers, pools and maintenance that there are no more.

        `models` are those that the settings name, `maintenance` those that are done.
        """
        redis = self._queue.servers.primary
        before = await redis.scard(keys.WORKERS)
        workers = await self._registry.workers()  # takes out what has expired
        dropped = {"worker": max(0, before - len(workers))}
        pools = {worker.pool for worker in workers} | {pool_name(model) for model in models}
        pools |= {model.pool for model in (await self._registry.models()).values()}
        pipeline = self._queue.servers.pipeline()
        for shard in range(self._queue.shards):
            pipeline.of(shard).smembers(keys.pool_names(shard))
        pools |= {pool.decode() for found in await pipeline.execute() for pool in found}
        known = {make(pool) for pool in pools for make in (keys.scale, keys.scaling_events)}
        async for key in redis.scan_iter(keys.SCALE_PATTERN, _KEYS_AT_ONCE):
            if key.decode() not in known:
                dropped["scale"] = dropped.get("scale", 0) + await redis.delete(key)
        for name in await redis.hkeys(keys.MAINTENANCE_RUNS):
            if name.decode() not in maintenance:
                dropped["task"] = dropped.get("task", 0) + await redis.hdel(
                    keys.MAINTENANCE_RUNS, name
                )
        found = [_count(n, f"{what} records") for what, n in dropped.items() if n]
        if found:
            log.info("removed stale records: %s", ", ".join(found))


def _add(done: dict[str, Repaired], more: Mapping[str, Repaired]) -> None:
    for what, repaired in more.items():
        before = done.get(what, Repaired(0, ()))
        ids = (before.ids + repaired.ids)[:_IDS_TOLD]
        done[what] = Repaired(before.times + repaired.times, ids)


def _told(done: Mapping[str, Repaired]) -> str:
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
