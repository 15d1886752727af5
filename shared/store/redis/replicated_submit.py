"""Submits that count once replicas of the Redis have them: FLOTILLA_WAIT_REPLICAS."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from shared.store.interface import StoreTimeout
from shared.store.redis.cluster import once_served
from shared.store.redis.pipelined_connection import Argument, PipelinedConnection
from shared.store.redis.redis_client import TIMEOUT_S
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.servers import Servers

_WAIT_MS = 1000


class ReplicatedSubmits:
    """Those of one process. `replicas`: how many have to confirm each."""

    def __init__(self, servers: Servers, replicas: int) -> None:
        self._servers = servers
        self._replicas = replicas
        # Of their own: WAIT is about the writes of its connection, and blocks it.
        self._connections: dict[Scripts, PipelinedConnection] = {}

    async def submit(self, scripts: Scripts, shard: int, arguments: Sequence[Argument]) -> Any:
        """The reply of the script `submit`. Raises StoreTimeout: the jobs may be queued."""
        return await once_served(partial(self._submit, scripts, shard, arguments))

    async def _submit(self, scripts: Scripts, shard: int, arguments: Sequence[Argument]) -> Any:
        connection = self._connections.get(scripts)
        if connection is None:
            connection = PipelinedConnection(self._servers.of(shard), TIMEOUT_S)
            self._connections[scripts] = connection
        await scripts.ready()
        await connection.connect()
        losses = connection.losses
        reply = await scripts.start_on(connection, "submit", shard, arguments)
        confirmed = await connection.call("WAIT", self._replicas, _WAIT_MS)
        if connection.losses != losses or confirmed < self._replicas:
            raise StoreTimeout(
                f"{confirmed} of {self._replicas} replicas (FLOTILLA_WAIT_REPLICAS) have confirmed "
                "the job; it may be queued"
            )
        return reply

    async def close(self) -> None:
        """Close their connections."""
        for connection in self._connections.values():
            await connection.close()
