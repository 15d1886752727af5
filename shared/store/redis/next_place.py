"""Where the next job of a tenant would wait: asked before it is submitted."""

from __future__ import annotations

from typing import NamedTuple

from shared.job.lanes import CLIENT_LANES, pool_of
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

_SOME = 8
"""Workers whose free slots are read."""


class NextPlace(NamedTuple):
    """Where a job that is not submitted yet would wait."""

    better: int
    """Jobs that wait in better lanes."""
    waiting: int
    """In its own lane, of all tenants."""
    own: int
    """Of them, of its tenant."""
    turns: int
    """Tenants whose jobs are claimed in turn, its own among them."""
    free: int
    """Slots of workers that are free, of up to eight per shard; 0 if anything waits."""

    def position(self, more: int = 0) -> int:
        """From 1, counted as in `depths.positions`; behind so many more jobs of its tenant."""
        in_lane = min(self.waiting + more + 1, (self.own + more + 1) * self.turns)
        return self.better + in_lane


async def next_place(queue: JobQueue, pool: str, lane: str, tenant: str) -> NextPlace:
    """Where the tenant's next job would wait, in one round trip.

    Jobs of a server that is away are not counted. Raises StoreError.
    """
    pipeline, shards = queue.servers.pipeline(), range(queue.shards)
    lanes = CLIENT_LANES[: CLIENT_LANES.index(lane) + 1]
    for shard in shards:
        for each in lanes:
            pipeline.of(shard).zcard(keys.waiting(shard, pool, each))
        pipeline.of(shard).zcard(keys.waiting_of(shard, pool, lane, tenant))
        pipeline.of(shard).zcard(keys.turns(shard, pool, lane))
        pipeline.of(shard).zrange(
            keys.advertised(shard, pool_of(pool)), -_SOME, -1, withscores=True
        )
    replies = iter(await pipeline.execute(raise_on_error=False, partial=True))
    better = waiting = own = turns = free = 0
    for _ in shards:
        *before, in_lane, of_tenant, tenants = [
            each if isinstance(each, int) else 0
            for each in (next(replies) for _ in range(len(lanes) + 2))
        ]
        better, waiting, own = better + sum(before), waiting + in_lane, own + of_tenant
        turns = max(turns, tenants)
        advertised = next(replies)
        if isinstance(advertised, list):
            free += sum(max(0, int(slots)) for _, slots in advertised)
    turns = max(1, turns + (not own))
    return NextPlace(better, waiting, own, turns, 0 if better + waiting else free)
