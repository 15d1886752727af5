"""The fleet's Redis servers, and which of them a shard is on.

Most fleets have one. Where one core of Redis is not enough, shard n is on server n modulo the
number of servers. Servers do not know of each other: while one is away the jobs of its shards wait,
and no others. What belongs to no shard (workers, models, decisions, maintenance) is on the
`primary`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.redis_client import connect


def server_index(shard: int, n_servers: int) -> int:
    """Which of the servers a shard lies on."""
    return shard % n_servers


class Servers:
    """Clients for short calls. `shard_urls` empty: all is on the primary."""

    def __init__(
        self, primary_url: str, shard_urls: Sequence[str] = (), *, max_connections: int = 64
    ) -> None:
        self.urls = tuple(shard_urls) or (primary_url,)
        """Of those that hold shards."""
        self.primary = connect(primary_url, max_connections=max_connections)
        self.all: tuple[Any, ...] = tuple(
            self.primary if url == primary_url else connect(url, max_connections=max_connections)
            for url in self.urls
        )
        """Those that hold shards."""

    def __len__(self) -> int:
        return len(self.all)

    def of(self, shard: int) -> Any:
        """The client of a shard's server."""
        return self.all[server_index(shard, len(self.all))]

    def pipeline(self) -> ShardedPipeline:
        """An empty pipeline over all servers that hold shards."""
        return ShardedPipeline(self.all)

    async def time_s(self) -> float:
        """The primary's clock, Unix seconds. Raises StoreError."""
        seconds, micros = await self.primary.time()
        return int(seconds) + int(micros) / 1e6

    async def infos(self) -> list[Mapping[str, Any]]:
        """INFO of each server that holds shards; empty of one that can't be reached."""
        return await asyncio.gather(*map(_info, self.all))

    async def write_problems(self, writer: str) -> tuple[str, list[str]]:
        """Why the primary can't be written, and each server that holds shards; empty if it can.

        A PING would not detect that its memory is full.
        """
        tested = list(dict.fromkeys([*self.all, self.primary]))
        found = await asyncio.gather(*(_test_write(redis, writer) for redis in tested))
        return found[tested.index(self.primary)], found[: len(self.all)]

    async def close(self) -> None:
        """Close all connections."""
        for redis in {self.primary, *self.all}:
            await redis.aclose(close_connection_pool=True)


async def _info(redis: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = await redis.info()
    except StoreError:
        return {}
    return found


async def _test_write(redis: Any, writer: str) -> str:
    try:
        await redis.set(keys.PROBE, writer, px=10_000)
    except StoreError as error:
        return str(error)[:200] or type(error).__name__
    return ""


class ShardedPipeline:
    """Commands to several servers, one pipeline and one round trip for each; use it once."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._pipelines = [redis.pipeline(transaction=False) for redis in servers]
        self._server_of_command: list[int] = []

    def of(self, shard: int) -> Any:
        """The pipeline to the shard's server; call exactly one command on it."""
        index = server_index(shard, len(self._pipelines))
        self._server_of_command.append(index)
        return self._pipelines[index]

    async def execute(self, *, raise_on_error: bool = True, partial: bool = False) -> list[Any]:
        """Send everything. Returns the replies in the order of the commands.

        Without `raise_on_error` the error of a command that Redis refuses takes the place of the
        reply; with `partial` also that of a server that can't be reached.
        """
        replies = await asyncio.gather(
            *(_execute(each, raise_on_error, partial=partial) for each in self._pipelines)
        )
        by_server = [iter(each) for each in replies]
        return [next(by_server[index]) for index in self._server_of_command]


async def _execute(pipeline: Any, raise_on_error: bool, *, partial: bool) -> list[Any]:
    count = len(pipeline)  # `execute` empties it; it sends nothing when there are no commands
    try:
        replies: list[Any] = await pipeline.execute(raise_on_error=raise_on_error)
    except StoreUnavailable as error:
        if not partial:
            raise
        return [error] * count
    return replies
