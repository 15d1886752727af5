"""What the chores do. Each may be done twice, or not at all: the next round does it.

Leases, deadlines and the index do not wait for chores: shared/reaper.py runs in every process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection

from gateway.chores.walk import Step, walk
from shared import keys
from shared.queue import JobQueue
from shared.registry import Registry, pool_name

log = logging.getLogger("flotilla.chores")

STEPS_A_ROUND = 200
ROUND_S = 5.0
"""Other chores wait meanwhile."""
_KEYS_AT_ONCE = 500


class Housekeeping:
    """Keeps its place from one round to the next."""

    def __init__(self, queue: JobQueue, registry: Registry) -> None:
        self._queue = queue
        self._registry = registry
        self._walk: AsyncIterator[Step] | None = None

    async def repair(self) -> None:
        """Go on with the walk over all jobs and what leads to them, and put right what is wrong.

        A job that waits is found by workers again although Redis lost its entry; entries and index
        members whose jobs are gone are taken out. A small fleet is walked over in one round.
        """
        done: Counter[str] = Counter()
        clock = asyncio.get_running_loop().time
        until = clock() + ROUND_S
        try:
            self._walk = self._walk or walk(self._queue)
            for _ in range(STEPS_A_ROUND):
                step = await anext(self._walk, None)
                if step is None:
                    self._walk = None
                    break
                if step.members:
                    done.update(await self._queue.repair(*step))
                if clock() > until:
                    break
        except BaseException:
            self._walk = None  # a generator that has raised has nothing more to give
            raise
        finally:
            if done:
                log.warning("repaired: %s", ", ".join(f"{n} {what}" for what, n in done.items()))

    async def tidy(self, models: Collection[str], chores: Collection[str]) -> None:
        """Take out records of workers, pools and chores that there are no more.

        `models` are those that the settings name, `chores` those that are done.
        """
        redis = self._queue.redis
        before = await redis.scard(keys.WORKERS)
        workers = await self._registry.workers()  # takes out what has expired
        dropped = {"worker": max(0, before - len(workers))}
        pools = {worker.pool for worker in workers} | {pool_name(model) for model in models}
        pools |= {model.pool for model in (await self._registry.models()).values()}
        for shard in range(self._queue.shards):
            pools |= {pool.decode() for pool in await redis.smembers(keys.pools(shard))}
        known = {make(pool) for pool in pools for make in (keys.scale, keys.scalings)}
        async for key in redis.scan_iter(keys.SCALE_PATTERN, _KEYS_AT_ONCE):
            if key.decode() not in known:
                dropped["scale"] = dropped.get("scale", 0) + await redis.delete(key)
        for name in await redis.hkeys(keys.CHORES):
            if name.decode() not in chores:
                dropped["chore"] = dropped.get("chore", 0) + await redis.hdel(keys.CHORES, name)
        found = [f"{n} {what} records" for what, n in dropped.items() if n]
        if found:
            log.info("nobody needs them any more: %s", ", ".join(found))
