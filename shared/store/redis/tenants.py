"""What is kept of tenants, and how many of their jobs wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shared.job.lanes import CLIENT_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue


class Kept(NamedTuple):
    """What is kept of a tenant, as the quotas count it."""

    number: int
    last_at: float | None
    """When the newest was submitted, Unix seconds."""
    conversations: int
    bytes: int
    """Of conversations, and of requests and answers above 4 KiB."""


async def kept_of(queue: JobQueue, tenants: Sequence[str]) -> list[Kept]:
    """What is kept of each tenant, in all shards. Raises StoreError if any server is away."""
    pipeline = queue.servers.pipeline()
    for tenant in tenants:
        for shard in range(queue.shards):
            pipeline.of(shard).zcard(keys.jobs(shard, tenant))
            pipeline.of(shard).zrange(keys.jobs(shard, tenant), -1, -1, withscores=True)
            pipeline.of(shard).zcard(keys.conversations(shard, tenant))
            pipeline.of(shard).zscore(keys.kept(shard, tenant), keys.KEPT_TOTAL)
    replies = iter(await pipeline.execute(raise_on_error=False))
    found = []
    for _ in tenants:
        numbers, newest, conversations, sizes = [], [0.0], [], []
        for _ in range(queue.shards):
            number, last, threads, size = (next(replies) for _ in range(4))
            if isinstance(number, int) and isinstance(last, list):
                numbers.append(number)
                newest += [score for _, score in last]
            conversations.append(threads if isinstance(threads, int) else 0)
            sizes.append(int(size) if isinstance(size, float) else 0)
        last_us = max(newest)
        last_at = last_us / 1e6 if last_us else None
        found.append(Kept(sum(numbers), last_at, sum(conversations), sum(sizes)))
    return found


class WaitingTenants(NamedTuple):
    """The tenants of a pool whose jobs wait."""

    jobs: Counter[str]
    """How many of each; not those in the `retry` lane."""
    served: dict[str, float]
    """The part of each in what these were served lately, over their weights (fair_shares.py): who
    has least is next. On average over lanes and shards, whose levels can't be compared."""


async def waiting_by_tenant(
    queue: JobQueue, queues: Mapping[str, Sequence[str]], most: int
) -> dict[str, WaitingTenants]:
    """The tenants whose jobs wait, by pool.

    `queues`: pool -> its queues. Of more than `most` tenants in one lane and shard, those that come
    first. Raises StoreError if any server is away.
    """
    pipeline, places = queue.servers.pipeline(), []
    for pool, names in queues.items():
        for name in names:
            for lane in CLIENT_LANES:
                for shard in range(queue.shards):
                    places.append((pool, name, lane, shard))
                    key = keys.turns(shard, name, lane)
                    pipeline.of(shard).zrange(key, 0, most - 1, withscores=True)
    replies = await pipeline.execute(raise_on_error=False)
    pipeline, counted = queue.servers.pipeline(), []
    parts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (pool, name, lane, shard), reply in zip(places, replies, strict=True):
        turns = reply if isinstance(reply, list) else []
        total = sum(level for _, level in turns)
        for raw, level in turns:
            tenant = raw.decode(errors="replace")
            counted.append((pool, tenant))
            parts[pool][tenant] += level / total if total else 0.0
            pipeline.of(shard).zcard(keys.waiting_of(shard, name, lane, tenant))
    jobs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    replies = await pipeline.execute(raise_on_error=False)
    for (pool, tenant), count in zip(counted, replies, strict=True):
        if isinstance(count, int) and count:  # a turn may be left over
            jobs[pool][tenant] += count
    return {
        pool: WaitingTenants(found, _shares(parts[pool], found)) for pool, found in jobs.items()
    }


def _shares(parts: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: parts[name] / total for name in names} if total else {}
