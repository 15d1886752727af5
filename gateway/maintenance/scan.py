"""A walk over all keys that lead to jobs, in steps that Redis does not notice.

What it reads may be out of date when it is looked at; lua/repair.lua looks again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from shared.platform.servers import shards_on
from shared.protocol import keys
from shared.protocol.lanes import CLIENT_LANES, LANES
from shared.queue.job_queue import JobQueue

AT_ONCE = 200
"""Members in one step, about: Redis serves nobody else meanwhile."""


class Step(NamedTuple):
    """Some members of one key, as `JobQueue.repair` takes them; often there are none."""

    shard: int
    word: str
    place: str
    members: Sequence[bytes]


async def scan_server(queue: JobQueue, server: int = 0) -> AsyncIterator[Step]:
    """Once over everything on one server. Raises redis' errors, and is over then.

    First the jobs themselves: what they lack, streams and names of pools among it, is walked over
    after them.
    """
    redis, shards = queue.servers.all[server], shards_on(server, len(queue.servers), queue.shards)
    async for step in _jobs(redis, shards):
        yield step
    for shard in shards:
        names = await redis.smembers(keys.pool_names(shard))
        for pool in sorted(name.decode() for name in names):
            for lane in LANES:
                place = f"{pool}:{lane}"
                stream = keys.queue(shard, pool, lane)
                async for members in _entries(redis, stream):
                    yield Step(shard, keys.QUEUE, place, members)
            for lane in CLIENT_LANES:
                place = f"{pool}:{lane}"
                waiting = keys.waiting(shard, pool, lane)
                async for members in _members(redis, waiting):
                    yield Step(shard, keys.WAITING, place, members)
        async for members in _members(redis, keys.base(shard) + keys.DEADLINES):
            yield Step(shard, keys.DEADLINES, "", members)


async def _jobs(redis: Any, shards: range) -> AsyncIterator[Step]:
    """The hashes and logs of jobs, and the lists of tenants' jobs; nothing else knows them all."""
    cursor = None
    while cursor != 0:
        cursor, found = await redis.scan(cursor or 0, keys.JOBS_PATTERN, AT_ONCE)
        ids: dict[tuple[int, str], list[bytes]] = {}
        for key in found:
            shard, word, rest = keys.parse(key.decode()) or (-1, "", "")
            if shard not in shards:
                continue
            if word in {keys.JOB, keys.LOG}:
                ids.setdefault((shard, word), []).append(rest.encode())
            elif word == keys.JOBS:
                async for members in _members(redis, key):
                    yield Step(shard, keys.JOBS, rest, members)
        for (shard, word), members in ids.items():
            yield Step(shard, word, "", members)
        yield Step(shards[0], keys.JOB, "", ())  # a look at keys is work for Redis too


async def _members(redis: Any, key: str | bytes) -> AsyncIterator[list[bytes]]:
    cursor = None
    while cursor != 0:
        cursor, found = await redis.zscan(key, cursor or 0, count=AT_ONCE)
        yield [member for member, _ in found]


async def _entries(redis: Any, stream: str) -> AsyncIterator[list[bytes]]:
    after = "-"
    while found := await redis.xrange(stream, after, "+", count=AT_ONCE):
        yield [entry for entry, _ in found]
        after = f"({found[-1][0].decode()}"
