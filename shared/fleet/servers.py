"""The fleet's Redis servers, and on which of them a shard lies.

Most fleets have one. Where one core of Redis is not enough, shard n lies on the n-th server, modulo
how many there are. They know nothing of each other: one that is away takes its shards' jobs with it
until it is back, and no others. What belongs to no shard (workers, models, decisions, chores) is at
`home`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from shared.platform.redis_client import connect


def server_index(shard: int, n_servers: int) -> int:
    """Which of the servers a shard lies on."""
    return shard % n_servers


def shards_on(place: int, n_servers: int, n_shards: int) -> range:
    """The shards that lie on a server."""
    return range(place, n_shards, n_servers)


class Servers:
    """Clients for short calls. `shard_urls` empty: all is at home."""

    def __init__(
        self, home_url: str, shard_urls: Sequence[str] = (), *, max_connections: int = 64
    ) -> None:
        # redis-py types every reply as bytes or str; ours are bytes.
        self.home: Any = connect(home_url, max_connections=max_connections)
        self.all: tuple[Any, ...] = tuple(
            self.home if url == home_url else connect(url, max_connections=max_connections)
            for url in shard_urls or [home_url]
        )
        """Those that hold shards."""

    def __len__(self) -> int:
        return len(self.all)

    def of(self, shard: int) -> Any:
        """The client of a shard's server."""
        return self.all[server_index(shard, len(self.all))]

    def ask(self) -> Questions:
        """Commands that leave together."""
        return Questions(self.all)

    async def close(self) -> None:
        """Close all connections."""
        for redis in {self.home, *self.all}:
            await redis.aclose(close_connection_pool=True)


class Questions:
    """Commands to several servers, a pipeline for each; call `answers` once."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._pipes = [redis.pipeline(transaction=False) for redis in servers]
        self._asked: list[int] = []

    def of(self, shard: int) -> Any:
        """The pipeline to the shard's server, for exactly one command."""
        place = server_index(shard, len(self._pipes))
        self._asked.append(place)
        return self._pipes[place]

    async def answers(self, *, partly: bool = False) -> list[Any]:
        """In the order of the questions. Raises redis' errors.

        `partly`: errors stand in the place of answers instead.
        """
        replies = await asyncio.gather(*(_replies(pipe, partly=partly) for pipe in self._pipes))
        by_place = [iter(each) for each in replies]
        return [next(by_place[place]) for place in self._asked]


async def _replies(pipe: Any, *, partly: bool) -> list[Any]:
    count = len(pipe)  # execute empties it; without commands it asks nobody
    try:
        replies: list[Any] = await pipe.execute(raise_on_error=not partly)
    except (RedisError, OSError) as error:
        if not partly:
            raise
        return [error] * count
    return replies
