"""How many jobs of each pool are whose: counted in a sample of the jobs that wait or run."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgpack

from gateway.ops.overview.models import TenantOverview
from shared.job.job import shard_of
from shared.job.lanes import WAITING_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.redis_client import UNAVAILABLE

_MOST_WAITING = 100
"""Waiting jobs of one pool that are looked at, the oldest ones."""
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
        that run. `totals`: pool -> how many jobs wait and run. Raises redis' errors.
        """
        if self._only:
            return {
                pool: [_overview(self._only, *total)] if any(total) else []
                for pool, total in totals.items()
            }
        waiting_ids = await self._waiting(queues, totals)
        running = {pool: list(ids)[:_MOST_RUNNING] for pool, ids in running_ids.items()}
        await self._learn(chain(*waiting_ids.values(), *running.values()))
        found = {}
        for pool, (n_waiting, n_running) in totals.items():
            waits = self._counted(waiting_ids.get(pool, ()), n_waiting)
            runs = self._counted(running.get(pool, ()), n_running)
            tenants = [_overview(name, waits[name], runs[name]) for name in waits | runs]
            found[pool] = sorted(tenants, key=lambda t: (-t.waiting - t.running, t.tenant))
        return found

    def _counted(self, ids: Sequence[str], total: int) -> Counter[str]:
        """Jobs by tenant, scaled from the sample to the total."""
        sample = Counter(self._tenants[each] for each in ids if each in self._tenants)
        seen = sample.total()
        if not seen:
            return Counter()
        return Counter({name: round(n * total / seen) or 1 for name, n in sample.items()})

    async def _waiting(
        self, queues: Mapping[str, Sequence[str]], totals: Mapping[str, tuple[int, int]]
    ) -> dict[str, list[str]]:
        queue = self._queue
        most = max(1, _MOST_WAITING // queue.shards)
        pipeline, places = queue.servers.pipeline(), []
        for pool, names in queues.items():
            if not totals.get(pool, (0, 0))[0]:
                continue
            for name in names:
                for lane in WAITING_LANES:
                    for shard in range(queue.shards):
                        places.append(pool)
                        pipeline.of(shard).zrange(keys.waiting(shard, name, lane), 0, most - 1)
        found: dict[str, list[str]] = {}
        for pool, reply in zip(places, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(reply, UNAVAILABLE):
                raise reply
            if isinstance(reply, list):
                found.setdefault(pool, []).extend(raw.decode(errors="replace") for raw in reply)
        return found

    async def _learn(self, job_ids: Iterable[str]) -> None:
        new = [each for each in dict.fromkeys(job_ids) if each not in self._tenants]
        pipeline, asked = self._queue.servers.pipeline(), []
        for job_id in new:
            shard = shard_of(job_id)
            if shard is not None and shard < self._queue.shards:
                asked.append(job_id)
                pipeline.of(shard).hget(keys.job(shard, job_id), "request")
        for job_id, packed in zip(asked, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(packed, bytes) and (tenant := _tenant(packed)):
                self._tenants[job_id] = tenant
        while len(self._tenants) > _MOST_REMEMBERED:
            self._tenants.popitem(last=False)


def _overview(tenant: str, waiting: int, running: int) -> TenantOverview:
    return TenantOverview(tenant=tenant, waiting=waiting, running=running)


def _tenant(request: bytes) -> str:
    """The tenant in a record's request; empty if it can't be read."""
    try:
        return str(msgpack.unpackb(request)[0])
    except (ValueError, TypeError, LookupError, msgpack.exceptions.UnpackException):
        return ""
