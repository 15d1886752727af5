"""Keeps a worker in the state that operators have asked for of its pool: adapters, paused or not.

The operator calls (operations.py) do the same at once; this corrects what a lost message or a
restart left undone, and prepares a worker before it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shared.fleet.desired_pool import DesiredPool
from shared.fleet.registry import HEARTBEAT_S
from shared.job.adapter_queues import adapter_queue, is_adapter_queue
from shared.store.interface import StoreError
from shared.store.redis.depths import pool_names
from shared.store.redis.desired_pools import DesiredPools
from shared.store.redis.job_queue import JobQueue
from worker.core.adapters import Adapters
from worker.core.executor import Executor
from worker.core.operations import Operations

log = logging.getLogger("flotilla.worker")


class DesiredState:
    """One worker's part of what is desired of its pool."""

    def __init__(
        self,
        queue: JobQueue,
        desired: DesiredPools,
        pool: str,
        adapters: Adapters,
        executor: Executor,
        operations: Operations,
    ) -> None:
        self._queue = queue
        self._desired = desired
        self._pool = pool
        self._adapters = adapters
        self._executor = executor
        self._operations = operations
        self._last = DesiredPool()

    async def run(self) -> None:
        """Follow it until cancellation."""
        while True:
            await self.follow_if_possible()
            await asyncio.sleep(HEARTBEAT_S)

    async def follow_if_possible(self) -> None:
        """Do now what is desired; if Redis is unavailable, the next heartbeat tries again."""
        try:
            self._last = desired = await self._desired.read(self._pool)
            await self._operations.follow(paused=desired.paused)
            await self._adapters.follow(desired.adapters)
            await self.read_adapter_queues()
        except StoreError as error:
            log.warning("what is desired of the pool could not be read: %s", error)

    async def read_adapter_queues_if_possible(self) -> None:
        """As `read_adapter_queues`; if Redis is unavailable, the next heartbeat tries again."""
        with contextlib.suppress(StoreError):
            await self.read_adapter_queues()

    async def read_adapter_queues(self) -> None:
        """Claim from the queues of the adapters that are held. Raises StoreError.

        Also from those with jobs for adapters that were unloaded: they get the engine's error. Not
        from those of adapters that are desired and not held: other workers may hold them.
        """
        pool = self._pool
        held = {adapter_queue(pool, name) for name in self._adapters.held}
        awaited = {adapter_queue(pool, name) for name in self._last.adapters}
        shards, left = range(self._queue.shards), await self._known_queues() - held - awaited
        waiting = await self._executor.adapter_queues.waiting(left, shards) if left else set()
        await self._executor.read_adapter_queues(held | waiting)

    async def _known_queues(self) -> set[str]:
        """The pool's adapter queues that jobs were ever submitted to."""
        names = await pool_names(self._queue)
        return {name for name in names if is_adapter_queue(name, self._pool)}
