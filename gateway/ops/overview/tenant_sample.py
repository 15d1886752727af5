"""How many jobs of each pool each tenant has; of those that run, estimated from a sample."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from gateway.ops.overview.models import TenantOverview
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.tenants import tenants_of, waiting_by_tenant

_MOST_WAITING = 100
"""Tenants with waiting jobs in one lane and shard, which are counted."""
_MOST_RUNNING = 200
_MOST_REMEMBERED = 5000


class TenantSample:
    """Reads each job's tenant once: it never changes."""

    def __init__(self, queue: JobQueue, only: str = "") -> None:
        """`only`: the one tenant of the fleet, if there is only one; then nothing is read."""
        self._queue = queue
        self._only = only
        self._tenants: OrderedDict[str, str] = OrderedDict()  # by job

    async def read(
        self,
        queues: Mapping[str, Sequence[str]],
        running_ids: Mapping[str, Iterable[str]],
        totals: Mapping[str, tuple[int, int]],
    ) -> dict[str, list[TenantOverview]]:
        """The tenants of each pool, the one with most jobs first.

        `queues`: pool -> its queues, those of its adapters too. `running_ids`: pool -> ids of jobs
        that run. `totals`: pool -> how many jobs wait and run. Raises StoreError.
        """
        if self._only:
            return {
                pool: [_overview(self._only, *total)] if any(total) else []
                for pool, total in totals.items()
            }
        busy = {pool: names for pool, names in queues.items() if totals.get(pool, (0, 0))[0]}
        waiting = await waiting_by_tenant(self._queue, busy, _MOST_WAITING)
        running = {pool: list(ids)[:_MOST_RUNNING] for pool, ids in running_ids.items()}
        await self._learn(chain(*running.values()))
        found = {}
        for pool, (_, n_running) in totals.items():
            waits, served = waiting.get(pool, (Counter[str](), dict[str, float]()))
            runs = self._counted(running.get(pool, ()), n_running)
            tenants = [
                _overview(name, waits[name], runs[name], served.get(name)) for name in waits | runs
            ]
            found[pool] = sorted(tenants, key=lambda t: (-t.waiting - t.running, t.tenant))
        return found

    def _counted(self, ids: Sequence[str], total: int) -> Counter[str]:
        """Jobs by tenant, scaled from the sample to the total."""
        sample = Counter(self._tenants[each] for each in ids if each in self._tenants)
        seen = sample.total()
        if not seen:
            return Counter()
        return Counter({name: round(n * total / seen) or 1 for name, n in sample.items()})

    async def _learn(self, job_ids: Iterable[str]) -> None:
        new = [each for each in dict.fromkeys(job_ids) if each not in self._tenants]
        self._tenants |= await tenants_of(self._queue, new)
        while len(self._tenants) > _MOST_REMEMBERED:
            self._tenants.popitem(last=False)


def _overview(
    tenant: str, waiting: int, running: int, served: float | None = None
) -> TenantOverview:
    return TenantOverview(tenant=tenant, waiting=waiting, running=running, served=served)
