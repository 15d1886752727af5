"""How much waits and runs in each lane, and how many jobs go before one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.job.job import Job, checked_shard
from shared.job.lanes import CLIENT_LANES, LANES, WAITING_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """What waits in one lane of a pool, over all shards."""

    pool: str
    lane: str
    waiting: int
    oldest_s: float
    in_progress: int


async def depths(queue: JobQueue) -> list[LaneDepth]:
    """What waits and what runs, per pool and lane.

    Raises StoreError if any server is away.
    """
    pools = await pool_names(queue)
    lanes = [(pool, lane) for pool in pools for lane in WAITING_LANES]
    pipeline = queue.servers.pipeline()
    pipeline.of(0).time()
    for pool, lane in lanes:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.waiting(shard, pool, lane))
            pipeline.of(shard).zrange(keys.waiting(shard, pool, lane), 0, 0, withscores=True)
    for pool in pools:
        for lane in LANES:
            for shard in range(queue.shards):
                pipeline.of(shard).xpending(keys.queue(shard, pool, lane), keys.GROUP)
    (seconds, micros), *replies = await pipeline.execute(raise_on_error=False)
    now_us = int(seconds) * 1_000_000 + int(micros)
    reply = iter(replies)
    waiting, oldest = {}, {}
    for place in lanes:
        counts, firsts = [], []
        for _ in range(queue.shards):
            count, first = next(reply), next(reply)
            counts.append(count)
            firsts += [int(score) for _, score in first]
        waiting[place] = sum(counts)
        # The clock of another server may be ahead.
        oldest[place] = max(0, now_us - min(firsts)) / 1e6 if firsts else 0.0
    running = {}
    for pool in pools:
        for lane in LANES:
            pending = [next(reply) for _ in range(queue.shards)]
            # No group yet: nothing was ever delivered from that lane.
            running[pool, lane] = sum(p["pending"] for p in pending if isinstance(p, dict))
    return [
        LaneDepth(pool, lane, waiting[pool, lane], oldest[pool, lane], running[pool, lane])
        if lane in WAITING_LANES
        else LaneDepth(pool, lane, 0, 0.0, running[pool, lane])
        for pool in pools
        for lane in LANES
    ]


async def pool_names(queue: JobQueue) -> list[str]:
    """The names of all queues that jobs were ever submitted to: pools, and their adapters' queues.

    Raises StoreError if any server is away.
    """
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).smembers(keys.pool_names(shard))
    names = await pipeline.execute()
    return sorted({pool.decode() for part in names for pool in part})


async def position(queue: JobQueue, job: Job) -> int | None:
    """The job's position in its queue, from 1; None if it does not wait (any more).

    See `positions`. Jobs of a server that is away are not counted. Raises StoreError if the job's
    own is away.
    """
    place = await place_of(queue, job)
    return place and place.position


class Place(NamedTuple):
    """Where a job waits."""

    position: int
    """In its queue, from 1."""
    tenants: int
    """That have jobs waiting in its lane; of several shards, in the one with most."""


async def place_of(queue: JobQueue, job: Job) -> Place | None:
    """The job's place in its queue; None if it does not wait (any more). As `position`."""
    (found,) = await _places(queue, [job])
    return found


async def positions(queue: JobQueue, jobs: Sequence[Job]) -> list[int | None]:
    """`position` of each of these jobs, in one round trip."""
    return [place and place.position for place in await _places(queue, jobs)]


async def _places(queue: JobQueue, jobs: Sequence[Job]) -> list[Place | None]:
    """`place_of` each of these jobs, in one round trip.

    Where several tenants wait in a lane, one job of each comes in turn: the n-th job of a tenant
    has n of each of the others before it, as far as there are so many. Who was served much lately,
    or has another weight, waits for longer or shorter.
    """
    pipeline = queue.servers.pipeline()
    lanes = dict.fromkeys((job.pool, lane) for job in jobs for lane in _up_to(job))
    for pool, lane in lanes:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.waiting(shard, pool, lane))
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.turns(shard, pool, lane))
    for job in jobs:
        own = checked_shard(job.id)
        pipeline.of(own).zscore(keys.waiting(own, job.pool, job.lane), job.id)
        own_lane, older = (job.pool, job.lane), ("-inf", job.created_us)
        for shard in range(queue.shards):
            pipeline.of(shard).zcount(keys.waiting(shard, *own_lane), *older)
        for shard in range(queue.shards):
            pipeline.of(shard).zcount(keys.waiting_of(shard, *own_lane, job.tenant), *older)
    replies = iter(await pipeline.execute(raise_on_error=False, partial=True))

    def counts() -> list[int]:
        found = [next(replies) for _ in range(queue.shards)]
        return [count for count in found if not isinstance(count, Exception)]

    waiting, tenants = {}, {}
    for place in lanes:
        waiting[place], tenants[place] = sum(counts()), max(counts(), default=1)
    found: list[Place | None] = []
    for job in jobs:
        waits, in_lane, rank = next(replies), sum(counts()), sum(counts())
        *better, own_lane = ((job.pool, lane) for lane in _up_to(job))
        if tenants[own_lane] > 1 and rank:
            in_lane = min(waiting[own_lane], rank * tenants[own_lane])
        ahead = sum(waiting[each] for each in better) if rank else 0  # requeued: before all lanes
        here = Place(max(1, ahead + in_lane), tenants[own_lane])
        found.append(None if waits is None else here)
    return found


def _up_to(job: Job) -> Sequence[str]:
    """The lanes whose jobs go before this one, and its own."""
    return CLIENT_LANES[: CLIENT_LANES.index(job.lane) + 1]


async def with_waiting_jobs(
    queue: JobQueue, names: Collection[str], shards: Iterable[int]
) -> set[str]:
    """Those of these queues that have waiting jobs in the shards. Raises StoreError."""
    pipeline, asked = queue.servers.pipeline(), []
    for shard in shards:
        for name in names:
            lanes = [keys.waiting(shard, name, lane) for lane in CLIENT_LANES]
            pipeline.of(shard).exists(*lanes)
            asked.append(name)
    return {name for name, found in zip(asked, await pipeline.execute(), strict=True) if found}


class FreeSlots(NamedTuple):
    """Of one pool, over all shards."""

    slots: int
    waiting: int
    """Jobs that wait in the queue, which will take slots."""


async def free_slots(queue: JobQueue, pool: str, *, but_of: str) -> FreeSlots:
    """The free slots of all workers but one. Raises StoreError if a server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).zrange(keys.advertised(shard, pool), 0, -1, withscores=True)
        for lane in CLIENT_LANES:
            pipeline.of(shard).zcard(keys.waiting(shard, pool, lane))
    slots, waiting = 0, 0
    for reply in await pipeline.execute():
        if isinstance(reply, list):
            # With more jobs on their way to a worker than it has slots its number is below zero.
            slots += sum(max(0, int(free)) for name, free in reply if not _is_of(name, but_of))
        else:
            waiting += reply
    return FreeSlots(slots, waiting)


def _is_of(member: bytes, worker: str) -> bool:
    return member.startswith(f"{worker} ".encode())


async def given_up(queue: JobQueue) -> int:
    """How many jobs ever ended with too_many_attempts. Raises StoreError if any server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).get(keys.base(shard) + keys.GIVEN_UP)
    return sum(int(count or 0) for count in await pipeline.execute())
