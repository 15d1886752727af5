"""Removes the records of models that have no workers, which stay after a worker's end."""

from __future__ import annotations

from collections.abc import Collection

from shared.job.lanes import pool_of
from shared.store.redis.batch_records import BatchRecords
from shared.store.redis.depths import depths
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue

KEPT_S = 7 * 86_400.0
"""A model is forgotten so long after its pool has had its last worker and job."""


class UnusedModels:
    """The models of pools without a worker, a job and an open batch. Methods raise StoreError."""

    def __init__(self, queue: JobQueue, registry: Registry) -> None:
        self._queue = queue
        self._registry = registry

    async def with_work(self) -> set[str]:
        """The pools with jobs that wait or run, or with open batches."""
        busy = [lane.pool for lane in await depths(self._queue) if lane.waiting or lane.in_progress]
        found = set(map(pool_of, busy))
        if batches := await BatchRecords(self._queue).open_now():
            named = {batch.model for batch in batches}
            models = (await self._registry.models()).values()
            # A batch that names none may be for any model: its lines are not read yet.
            found |= {
                pool_of(each.pool)
                for each in models
                if "" in named or named & {each.name, each.served_name}
            }
        return found

    async def in_use(self) -> set[str]:
        """The pools that have work, or a worker."""
        return await self.with_work() | {each.pool for each in await self._registry.workers()}

    async def forget_without_work(self, but: Collection[str]) -> list[str]:
        """Forget the models of pools that have no work, but those of these pools; their names.

        For a Redis whose workers have all ended.
        """
        names = await self._of_others({*but, *await self.with_work()})
        await self._registry.forget_models(names)
        return names

    async def expire(self, but: Collection[str]) -> int:
        """Forget the models of pools that have not been in use for 7 days; how many."""
        unused = await self._of_others({*but, *await self.in_use()})
        due = await self._registry.unused_for(unused, KEPT_S)
        await self._registry.forget_models(due)
        return len(due)

    async def _of_others(self, pools: Collection[str]) -> list[str]:
        models = await self._registry.models()
        return [name for name, model in models.items() if pool_of(model.pool) not in pools]
