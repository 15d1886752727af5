"""What waits, runs and is kept: depths of lanes, places in them, lists of jobs, tenants.

All is read with plain commands, in one or two round trips over all shards. Functions raise
StoreError; where nothing else is said, if any server is away.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from shared.job.job import Job, checked_shard
from shared.job.record import SUMMARY, read_job
from shared.job.result import INLINE_RESULT_BYTES
from shared.job.rules import CLIENT_LANES
from shared.store import keys
from shared.store.queue import Queue

_MOST_WORKERS = 64
"""Whose room is read, in each shard: those with most."""


# --- depths ---


class LaneDepth(NamedTuple):
    """What waits in one lane of a pool, over all shards."""

    pool: str
    lane: str
    waiting: int
    oldest_s: float
    in_progress: int
    """Jobs of the pool that run; in the row of its first lane, as they are in none."""


async def depths(queue: Queue) -> list[LaneDepth]:
    """What waits and what runs, per pool and lane."""
    pools, shards = await pool_names(queue), range(queue.shards)
    pipeline = queue.servers.pipeline()
    pipeline.of(0).time()
    for pool in pools:
        for shard in shards:
            pipeline.of(shard).xpending(keys.of("queue", shard, pool), keys.GROUP)
        for lane in CLIENT_LANES:
            for shard in shards:
                pipeline.of(shard).zcard(keys.of("waiting", shard, pool, lane))
                pipeline.of(shard).zrange(
                    keys.of("waiting", shard, pool, lane), 0, 0, withscores=True
                )
    now_s, *replies = await pipeline.execute(raise_on_error=False)
    reply = iter(replies)
    found = []
    for pool in pools:
        pending = [next(reply) for _ in shards]
        # No group yet: nothing was ever claimed.
        running = sum(each["pending"] for each in pending if isinstance(each, dict))
        for lane in CLIENT_LANES:
            waiting, oldest_s = 0, 0.0
            for _ in shards:
                waiting += next(reply)
                # The clock of another server may be ahead.
                oldest_s = max(oldest_s, *(now_s - score / 1e6 for _, score in next(reply)), 0.0)
            found.append(LaneDepth(pool, lane, waiting, oldest_s, running))
            running = 0
    return found


async def pool_names(queue: Queue) -> list[str]:
    """The names of all pools that jobs were ever submitted to."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).smembers(keys.of("pools", shard))
    return sorted({pool.decode() for part in await pipeline.execute() for pool in part})


async def alive(queue: Queue) -> set[str]:
    """The workers that have a lease in every shard: others have lost a connection, or stand still,
    and their jobs go to others."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).zrange(keys.of("workers", shard), 0, -1)
    found = [{worker.decode() for worker in part} for part in await pipeline.execute()]
    return set.intersection(*found)


async def given_up(queue: Queue) -> int:
    """How many jobs ever ended with too_many_attempts."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).get(keys.of("given_up", shard))
    return sum(int(count or 0) for count in await pipeline.execute())


# --- places ---


class QueuePlace(NamedTuple):
    """Where a job waits, or would wait if it was submitted now.

    Where several tenants wait in a lane, one job of each comes in turn: the n-th job of a tenant
    has n of each of the others before it, as far as there are so many. Who was served much lately,
    or has another weight, waits for longer or shorter.
    """

    better: int
    """Jobs that wait in better lanes."""
    waiting: int
    """In its own lane, of all tenants."""
    older: int
    """Of them, up to the job itself."""
    rank: int
    """Of these, in its tenant's line; 0: it is not there, as it was requeued: before all lanes."""
    tenants: int
    """That have jobs waiting in its lane; of several shards, in the one with most."""
    free: int = 0
    """For a job that is not submitted yet: the room of idle workers."""

    @property
    def position(self) -> int:
        """In its pool's queue, from 1."""
        in_turns = self.tenants > 1 and self.rank > 0
        in_lane = min(self.waiting, self.rank * self.tenants) if in_turns else self.older
        return max(1, (self.better if self.rank else 0) + in_lane)

    @property
    def others(self) -> int:
        """Other jobs that wait in its lane and in better ones."""
        return self.better + self.waiting - 1

    def behind(self, more: int) -> QueuePlace:
        """Where it is with so many more jobs of its tenant before it."""
        return self._replace(
            waiting=self.waiting + more, older=self.older + more, rank=self.rank + more
        )


async def places(queue: Queue, jobs: Sequence[Job]) -> list[QueuePlace | None]:
    """The place of each job in its queue, in one round trip; None if it does not wait (any more).

    Jobs of a server that is away are not counted, and do not wait.
    """
    pipeline, shards = queue.servers.pipeline(), range(queue.shards)
    lanes = dict.fromkeys((job.pool, lane) for job in jobs for lane in _up_to(job.lane))
    for lane in lanes:
        for shard in shards:
            pipeline.of(shard).zcard(keys.of("waiting", shard, *lane))
            pipeline.of(shard).zcard(keys.of("turns", shard, *lane))
    for job in jobs:
        for shard in shards:
            line = keys.of("line", shard, job.pool, job.lane, job.tenant)
            pipeline.of(shard).zcount(
                keys.of("waiting", shard, job.pool, job.lane), 0, job.created_us
            )
            pipeline.of(shard).zcount(line, 0, job.created_us)
        own = checked_shard(job.id)
        pipeline.of(own).zscore(keys.of("waiting", own, job.pool, job.lane), job.id)
    replies = iter(await pipeline.execute(raise_on_error=False, partial=True))

    def pairs() -> list[tuple[int, int]]:
        read = [(next(replies), next(replies)) for _ in shards]
        return [(a, b) for a, b in read if isinstance(a, int) and isinstance(b, int)]

    waiting, tenants = {}, {}
    for lane in lanes:
        counts = pairs()
        waiting[lane] = sum(count for count, _ in counts)
        tenants[lane] = max((turns for _, turns in counts), default=1)
    found: list[QueuePlace | None] = []
    for job in jobs:
        *better, lane = ((job.pool, each) for each in _up_to(job.lane))
        counts, waits = pairs(), next(replies)
        older, rank = sum(count for count, _ in counts), sum(count for _, count in counts)
        ahead = sum(waiting[each] for each in better)
        place = QueuePlace(ahead, waiting[lane], older, rank, tenants[lane])
        found.append(place if isinstance(waits, float) else None)
    return found


async def next_place(queue: Queue, pool: str, lane: str, tenant: str) -> QueuePlace:
    """Where the tenant's next job would wait, in one round trip. Servers that are away are not
    counted."""
    pipeline, lanes = queue.servers.pipeline(), _up_to(lane)
    for shard in range(queue.shards):
        for each in lanes:
            pipeline.of(shard).zcard(keys.of("waiting", shard, pool, each))
        pipeline.of(shard).zcard(keys.of("line", shard, pool, lane, tenant))
        pipeline.of(shard).zcard(keys.of("turns", shard, pool, lane))
        pipeline.of(shard).zrange(keys.of("idle", shard, pool), -_MOST_WORKERS, -1, withscores=True)
    replies = iter(await pipeline.execute(raise_on_error=False, partial=True))
    better = waiting = own = tenants = free = 0
    for _ in range(queue.shards):
        *counts, idle = [next(replies) for _ in range(len(lanes) + 3)]
        if isinstance(idle, Exception):
            continue
        *before, in_lane, of_tenant, turns = counts
        better, waiting, own = better + sum(before), waiting + in_lane, own + of_tenant
        tenants = max(tenants, turns)
        free += sum(max(0, int(room)) for _, room in idle)
    waiting, own, tenants = waiting + 1, own + 1, max(1, tenants + (not own))
    return QueuePlace(better, waiting, waiting, own, tenants, free)


def _up_to(lane: str) -> Sequence[str]:
    """The lanes whose jobs go before those of this one, and this one."""
    return CLIENT_LANES[: CLIENT_LANES.index(lane) + 1]


# --- lists of jobs ---

PLACE = r"^[0-9]{1,18}(-job_[0-9a-f]{27})?$"
"""What `Place.parse` reads."""


class Place(NamedTuple):
    """A cursor: behind this job. Newest jobs come first, those of a microsecond by their id."""

    created_us: int
    job_id: str = ""
    """Empty: behind all jobs that are younger or of that microsecond."""

    @classmethod
    def parse(cls, text: str) -> Place:
        """From what `str` gives. Raises ValueError if it is something else."""
        created_us, _, job_id = text.partition("-")
        return cls(int(created_us), job_id)

    def __str__(self) -> str:
        return f"{self.created_us}-{self.job_id}"


async def page(
    queue: Queue, tenants: Sequence[str], before: Place | None, limit: int
) -> list[tuple[int, str, Job | None]]:
    """`(created_us, id, job)` of at most `limit` jobs behind that place, newest first.

    Neither the bodies of requests nor the answers are read. A job is None when it has expired, and
    is not swept off the list yet.
    """
    found = await _newest(queue, tenants, before, limit)
    pipeline = queue.servers.pipeline()
    for _, job_id in found:
        shard = checked_shard(job_id)
        pipeline.of(shard).hmget(keys.job(shard, job_id), SUMMARY)
    return [
        (created_us, job_id, read_job(job_id, SUMMARY, values))
        for (created_us, job_id), values in zip(found, await pipeline.execute(), strict=True)
    ]


async def _newest(
    queue: Queue, tenants: Sequence[str], before: Place | None, limit: int
) -> list[tuple[int, str]]:
    """`(created_us, id)` of the tenants' newest jobs, from the indexes."""
    pipeline = queue.servers.pipeline()
    ranges: list[tuple[str | int, str | int, int]] = [("+inf", "-inf", limit)]
    if before is not None:  # all of that microsecond: some of them may have been shown
        us = before.created_us
        ranges = [(us, us, -1), (f"({us}", "-inf", limit)]
    for shard in range(queue.shards):
        for tenant in tenants:
            for newest, oldest, most in ranges:
                index = keys.of("jobs", shard, tenant)
                pipeline.of(shard).zrevrangebyscore(index, newest, oldest, 0, most, withscores=True)
    members = chain(*await pipeline.execute())
    found = [(int(score), member.decode()) for member, score in members]
    return sorted((row for row in found if before is None or row < before), reverse=True)[:limit]


async def with_errors(queue: Queue, jobs: Sequence[Job]) -> list[Job]:
    """The same jobs; those that the engine refused with their results, which hold the error, unless
    these are stored in pieces."""
    refused = [
        job for job in jobs if job.error_code and 0 < job.result_bytes <= INLINE_RESULT_BYTES
    ]
    pipeline = queue.servers.pipeline()
    for job in refused:
        shard = checked_shard(job.id)
        pipeline.of(shard).hget(keys.job(shard, job.id), "result")
    results = {
        job.id: result or b"" for job, result in zip(refused, await pipeline.execute(), strict=True)
    }
    return [
        dataclasses.replace(job, result=results[job.id]) if job.id in results else job
        for job in jobs
    ]


# --- tenants ---


class Kept(NamedTuple):
    """What is kept of a tenant."""

    number: int
    last_at: float | None
    """When the newest was submitted, Unix seconds."""
    conversations: int
    bytes: int
    """Of all its data in Redis."""


async def kept_of(queue: Queue, tenants: Sequence[str]) -> list[Kept]:
    """What is kept of each tenant, in all shards."""
    pipeline = queue.servers.pipeline()
    for tenant in tenants:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.of("jobs", shard, tenant))
            pipeline.of(shard).zrange(keys.of("jobs", shard, tenant), -1, -1, withscores=True)
            pipeline.of(shard).zcard(keys.of("conversations", shard, tenant))
            pipeline.of(shard).hget(keys.of("kept", shard), tenant)
    replies = iter(await pipeline.execute())
    found = []
    for _ in tenants:
        number = last_us = conversations = size = 0
        for _ in range(queue.shards):
            number += next(replies)
            last_us = max(last_us, *(int(score) for _, score in next(replies)), 0)
            conversations += next(replies)
            size += int(next(replies) or 0)
        found.append(Kept(number, last_us / 1e6 if last_us else None, conversations, size))
    return found


class WaitingTenants(NamedTuple):
    """The tenants of a pool whose jobs wait."""

    jobs: Counter[str]
    """How many of each; not those that were interrupted."""
    served: dict[str, float]
    """The part of each in what these were served lately, over their weights (rules.py): who
    has least is next. On average over lanes and shards, whose levels can't be compared."""


async def waiting_by_tenant(
    queue: Queue, pools: Sequence[str], most: int
) -> dict[str, WaitingTenants]:
    """The tenants whose jobs wait, by pool.

    Of more than `most` tenants in one lane and shard, those that come first.
    """
    pipeline, asked = queue.servers.pipeline(), []
    for pool in pools:
        for lane in CLIENT_LANES:
            for shard in range(queue.shards):
                asked.append((pool, lane, shard))
                turns = keys.of("turns", shard, pool, lane)
                pipeline.of(shard).zrange(turns, 0, most - 1, withscores=True)
    replies = await pipeline.execute()
    pipeline, counted = queue.servers.pipeline(), []
    parts = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    for (pool, lane, shard), levels in zip(asked, replies, strict=True):
        total = sum(level for _, level in levels)
        for raw, level in levels:
            tenant = raw.decode(errors="replace")
            counted.append((pool, tenant))
            parts[pool][tenant] += level / total if total else 0.0
            pipeline.of(shard).zcard(keys.of("line", shard, pool, lane, tenant))
    jobs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (pool, tenant), count in zip(counted, await pipeline.execute(), strict=True):
        if count:  # a turn may be left over
            jobs[pool][tenant] += count
    return {pool: WaitingTenants(each, _shares(parts[pool], each)) for pool, each in jobs.items()}


def _shares(parts: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: parts[name] / total for name in names} if total else {}
