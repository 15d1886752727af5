"""How many free slots the workers of a pool have: those that they have advertised."""

from __future__ import annotations

from typing import NamedTuple

from shared.job.lanes import CLIENT_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.store_errors import damaged_is_empty


class FreeSlots(NamedTuple):
    """Of one pool, over all shards."""

    slots: int
    waiting: int
    """Jobs that wait in the queue, which will take slots."""


async def free_slots(queue: JobQueue, pool: str, *, but_of: str) -> FreeSlots:
    """The free slots of all workers but one. Raises redis' errors if a server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).zrange(keys.advertised(shard, pool), 0, -1, withscores=True)
        for lane in CLIENT_LANES:
            pipeline.of(shard).zcard(keys.waiting(shard, pool, lane))
    slots, waiting = 0, 0
    for reply in map(damaged_is_empty, await pipeline.execute(raise_on_error=False)):
        if isinstance(reply, list):
            # With more jobs on their way to a worker than it has slots its number is below zero.
            slots += sum(max(0, int(free)) for name, free in reply if not _is_of(name, but_of))
        else:
            waiting += reply or 0
    return FreeSlots(slots, waiting)


def _is_of(member: bytes, worker: str) -> bool:
    return member.startswith(f"{worker} ".encode())
