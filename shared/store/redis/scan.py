"""Scans all keys that refer to jobs, in steps too small to delay Redis' other clients.

What a step has read may be out of date when it is used; repair.lua checks it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from shared.job.lanes import LANES, WAITING_LANES
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

MEMBERS_PER_STEP = 200
"""About; Redis serves no other client during a step."""


class Step(NamedTuple):
    """Some members of one key, as arguments of `JobQueue.repair`; `members` is often empty."""

    shard: int
    word: str
    name: str
    """The rest of the key: `pool:lane` or a tenant; empty where the shard and word are enough."""
    members: Sequence[bytes]


async def scan_shards(queue: JobQueue, shards: range) -> AsyncIterator[Step]:
    """One scan over everything in shards that share a client. Ends by raising StoreError.

    The jobs come first: their repair may create streams and names of pools, which come after them.
    """
    redis = queue.servers.of(shards[0])
    async for step in _jobs(redis, shards):
        yield step
    for shard in shards:
        pools = await redis.smembers(keys.pool_names(shard))
        for pool in sorted(pool.decode(errors="replace") for pool in pools):
            for lane in LANES:
                name = f"{pool}:{lane}"
                stream = keys.queue(shard, pool, lane)
                async for members in _entries(redis, stream):
                    yield Step(shard, keys.QUEUE, name, members)
            for lane in WAITING_LANES:
                name = f"{pool}:{lane}"
                waiting = keys.waiting(shard, pool, lane)
                async for members in _members(redis, waiting):
                    yield Step(shard, keys.WAITING, name, members)
        async for members in _members(redis, keys.base(shard) + keys.DEADLINES):
            yield Step(shard, keys.DEADLINES, "", members)


async def _jobs(redis: Any, shards: range) -> AsyncIterator[Step]:
    """The hashes and logs of jobs, and what is counted of tenants, found by SCAN over all keys."""
    cursor = None
    while cursor != 0:
        cursor, found = await redis.scan(cursor or 0, keys.things_pattern(shards), MEMBERS_PER_STEP)
        ids: dict[tuple[int, str], list[bytes]] = {}
        for key in found:
            shard, word, rest = keys.parse(key.decode(errors="replace")) or (-1, "", "")
            if shard not in shards:
                continue
            if word in {keys.JOB, keys.LOG}:
                ids.setdefault((shard, word), []).append(rest.encode())
            elif word in {keys.JOBS, keys.KEPT, keys.CONVERSATIONS}:
                async for members in _members(redis, key):
                    yield Step(shard, word, rest, members)
        for (shard, word), members in ids.items():
            yield Step(shard, word, "", members)
        yield Step(shards[0], keys.JOB, "", ())  # the SCAN itself was a step


async def _members(redis: Any, key: str | bytes) -> AsyncIterator[list[bytes]]:
    cursor = None
    while cursor != 0:
        cursor, found = await redis.zscan(key, cursor or 0, count=MEMBERS_PER_STEP)
        yield [member for member, _ in found]


async def _entries(redis: Any, stream: str) -> AsyncIterator[list[bytes]]:
    after = "-"
    while found := await _entries_behind(redis, stream, after):
        yield [entry for entry, _ in found]
        after = f"({found[-1][0].decode()}"


async def _entries_behind(redis: Any, stream: str, after: str) -> list[Any]:
    found: list[Any] = await redis.xrange(stream, after, "+", count=MEMBERS_PER_STEP)
    return found
