"""The clients of the fleet's Redis, and which of them a shard has.

All shards of one Redis share one client, which is that of what belongs to no shard (workers,
models, decisions, maintenance), too: the `primary`. On a cluster each shard has a client of its
slot, and so has what belongs to none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from shared.platform.cluster_url import is_cluster
from shared.platform.tasks import run_together
from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.cluster import FLEET_TAG, shard_tags
from shared.store.redis.redis_client import connect, connect_slot, slot_map


class Servers:
    """Clients for short calls; what subscribes or blocks makes a connection of its own of them."""

    def __init__(self, url: str, shards: int = 1, *, max_connections: int = 64) -> None:
        """The keys of this process are those of this Redis from then on. Raises ValueError."""
        self.shards = shards
        self._of_groups: Sequence[Any]
        self.groups: Sequence[range] = [range(shards)]
        """The shards that share a client: what a process does once for each connection, as to
        subscribe, it does for each group."""
        if is_cluster(url):
            tags, slots = shard_tags(shards), slot_map(url)
            clients = [
                connect_slot(slots, tag, max_connections=max_connections)
                for tag in (FLEET_TAG, *tags)
            ]
            self.primary, *self._of_groups = clients
            self.groups = [range(shard, shard + 1) for shard in range(shards)]
        else:
            tags, self.primary = [], connect(url, max_connections=max_connections)
            self._of_groups = clients = [self.primary]
        keys.use_tags(tags)
        self.all: Sequence[Any] = clients
        """Each client once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def of(self, shard: int) -> Any:
        """The client of a shard. A number that no shard has finds a place without its jobs."""
        return self._of_groups[shard % len(self._of_groups)]

    def pipeline(self) -> ShardedPipeline:
        """An empty pipeline over all shards."""
        return ShardedPipeline(self._of_groups)

    async def time_s(self) -> float:
        """The primary's clock, Unix seconds. Raises StoreError."""
        seconds, micros = await self.primary.time()
        return int(seconds) + int(micros) / 1e6

    async def infos(self) -> list[Mapping[str, Any]]:
        """INFO of each group's server; empty of one that can't be reached."""
        return await run_together(*map(_info, self._of_groups))

    async def close(self) -> None:
        """Close all connections."""
        for redis in self.all:
            await redis.aclose(close_connection_pool=True)


async def _info(redis: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = await redis.info()
    except StoreError:
        return {}
    return found


class ShardedPipeline:
    """Commands to several shards, one pipeline and one round trip for each client; use it once."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self._pipelines = [redis.pipeline(transaction=False) for redis in clients]
        self._pipeline_of_command: list[int] = []

    def of(self, shard: int) -> Any:
        """The pipeline of the shard; call exactly one command on it."""
        index = shard % len(self._pipelines)
        self._pipeline_of_command.append(index)
        return self._pipelines[index]

    async def execute(self, *, raise_on_error: bool = True, partial: bool = False) -> list[Any]:
        """Send everything. Returns the replies in the order of the commands.

        Without `raise_on_error` the error of a command that Redis refuses takes the place of the
        reply; with `partial` also that of a server that can't be reached.
        """
        calls = [_execute(each, raise_on_error, partial=partial) for each in self._pipelines]
        replies = await run_together(*calls) if len(calls) > 1 else [await calls[0]]
        by_pipeline = [iter(each) for each in replies]
        return [next(by_pipeline[index]) for index in self._pipeline_of_command]


async def _execute(pipeline: Any, raise_on_error: bool, *, partial: bool) -> list[Any]:
    count = len(pipeline)  # `execute` empties it; it sends nothing when there are no commands
    try:
        replies: list[Any] = await pipeline.execute(raise_on_error=raise_on_error)
    except StoreUnavailable as error:
        if not partial:
            raise
        return [error] * count
    return replies
