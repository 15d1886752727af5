"""How many jobs were ever submitted, and how many have ended without an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.job.lanes import CLIENT_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue


class Throughput(NamedTuple):
    """Over all shards, since the fleet began."""

    submitted: int
    ended: Mapping[str, int]
    """State -> jobs that have ended in it; not the completed ones."""


async def throughput(queue: JobQueue, pools: Iterable[str]) -> Throughput:
    """Read the counters; `pools` with the queues of their adapters, as in LaneDepth.

    Raises StoreError if any server is away.
    """
    pipeline = queue.servers.pipeline()
    for pool in pools:
        for lane in CLIENT_LANES:
            for shard in range(queue.shards):
                pipeline.of(shard).xinfo_stream(keys.queue(shard, pool, lane))
    for shard in range(queue.shards):
        pipeline.of(shard).hgetall(keys.base(shard) + keys.ENDED)
    submitted = 0
    ended: Counter[str] = Counter()
    replies = await pipeline.execute(raise_on_error=False)
    streams, counts = replies[: -queue.shards], replies[-queue.shards :]
    for stream in streams:
        if isinstance(stream, dict):
            submitted += int(stream["entries-added"])
    for count in counts:
        if isinstance(count, dict):
            for state, n in count.items():
                if n.isdigit():
                    ended[state.decode(errors="replace")] += int(n)
    return Throughput(submitted, ended)


async def given_up(queue: JobQueue) -> int:
    """How many jobs ever ended with too_many_attempts. Raises StoreError if any server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).hget(keys.base(shard) + keys.ENDED, "too_many_attempts")
    return sum(int(count or 0) for count in await pipeline.execute())
