"""Calls scripts: each on the server that holds its shard, with the scripts loaded first.

A Redis that has lost its scripts (FUNCTION FLUSH, SCRIPT FLUSH, a restart without its data) answers
with ScriptsMissing, a RedisConnectionError: nothing was carried out. Coroutines of this module load
the scripts and repeat the call. Where no coroutine runs (`start`) the caller sees the error as a
lost connection, which it handles anyway; its next call loads the scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from shared.store.redis import keys
from shared.store.redis.pipelined_connection import Argument, PipelinedConnection
from shared.store.redis.redis_client import TIMEOUT_S
from shared.store.redis.redis_link import ScriptsMissing
from shared.store.redis.scripts.loader import NAMES, library, script
from shared.store.redis.servers import Servers, server_index


class _Server:
    """The scripts of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.connection = PipelinedConnection(redis, TIMEOUT_S, on_error=self._check_error)
        self._calls: dict[str, tuple[str, str]] = {}  # name -> command, and the name Redis knows

    async def load(self) -> None:
        prefix, text = library()
        try:
            await self._redis.function_load(text)
        except ResponseError as error:
            if "already exists" not in str(error):
                # Redis before 7; or its memory is full, or this user may not load functions.
                await self._load_scripts(flags="unknown command" not in str(error).lower())
                return
        self._calls = {name: ("FCALL", f"{prefix}_{name}") for name in NAMES}

    async def _load_scripts(self, *, flags: bool) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for name in NAMES:
            pipe.script_load(script(name, flags=flags))
        hashes = await pipe.execute()
        self._calls = {
            name: ("EVALSHA", sha if isinstance(sha, str) else sha.decode())
            for name, sha in zip(NAMES, hashes, strict=True)
        }

    async def ready(self) -> None:
        if not self._calls:
            await self.load()

    async def run(self, name: str, shard: int, arguments: Sequence[Argument]) -> Any:
        await self.ready()
        try:
            return await self.connection.call(*self.command(name, shard, arguments))
        except ScriptsMissing:
            await self.load()
            return await self.connection.call(*self.command(name, shard, arguments))

    def send(self, name: str, shard: int, arguments: Sequence[Argument]) -> asyncio.Future[Any]:
        """Raises RedisConnectionError if there is no connection, or no script was loaded."""
        return self.connection.send(*self.command(name, shard, arguments))

    def command(self, name: str, shard: int, arguments: Sequence[Argument]) -> tuple[Argument, ...]:
        """Raises RedisConnectionError if no script was loaded, or Redis has lost them since."""
        if not self._calls:
            raise RedisConnectionError("the scripts are not loaded")
        return (*self._calls[name], 1, keys.base(shard), *arguments)

    def _check_error(self, error: Exception) -> None:
        if isinstance(error, ScriptsMissing):
            self._calls = {}


class Scripts:
    """Calls scripts on the servers of a fleet. Every script may be repeated after a lost reply.

    Arguments and replies are those of the Lua scripts.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = [_Server(redis) for redis in servers.all]

    def _of(self, shard: int) -> _Server:
        return self._servers[server_index(shard, len(self._servers))]

    async def load(self, shard: int) -> None:
        """Load the scripts on the shard's server. Calls do it by themselves where it is needed."""
        await self._of(shard).load()

    async def ready(self, shard: int) -> None:
        """Load the scripts if that was not done yet."""
        await self._of(shard).ready()

    def losses(self, shard: int) -> int:
        """How often the connection was lost; see PipelinedConnection.losses."""
        return self._of(shard).connection.losses

    async def run(self, name: str, shard: int, arguments: Sequence[Argument] = ()) -> Any:
        """Call a script and return its reply. Raises redis' errors."""
        return await self._of(shard).run(name, shard, arguments)

    def start(self, name: str, shard: int, arguments: Sequence[Argument]) -> asyncio.Future[Any]:
        """`run`, without a coroutine where there is a connection; the future gets the reply."""
        try:
            return self._of(shard).send(name, shard, arguments)
        except RedisConnectionError:  # before anything was sent
            return asyncio.ensure_future(self.run(name, shard, arguments))

    def start_on_open_connection(
        self, name: str, shard: int, arguments: Sequence[Argument]
    ) -> asyncio.Future[Any]:
        """`start`, but without a connection the future fails: this never connects."""
        try:
            return self._of(shard).send(name, shard, arguments)
        except RedisConnectionError as error:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reply.set_exception(error)
            return reply

    def start_on(
        self,
        connection: PipelinedConnection,
        name: str,
        shard: int,
        arguments: Sequence[Argument],
    ) -> Coroutine[Any, Any, Any]:
        """Send a call on a connection of the caller's to the shard's server; await the reply.

        The call has been sent when this returns. Raises RedisConnectionError if the scripts are not
        `ready`: another call may have found that Redis has lost them.
        """
        server = self._of(shard)
        reply = connection.send(*server.command(name, shard, arguments))
        return self._reply(reply, server, name, shard, arguments)

    async def _reply(
        self,
        reply: asyncio.Future[Any],
        server: _Server,
        name: str,
        shard: int,
        arguments: Sequence[Argument],
    ) -> Any:
        try:
            return await reply
        except ScriptsMissing:
            # Not on the caller's connection: a blocking command may follow the call there.
            await server.load()
            return await server.run(name, shard, arguments)

    async def close(self) -> None:
        """Close the connections of the scripts; the clients in `servers` stay open."""
        for server in self._servers:
            await server.connection.close()


def job_states(reply: Sequence[bytes]) -> dict[str, str]:
    """Job id -> state, of a reply that is a flat array of both."""
    return {
        job_id.decode(): state.decode()
        for job_id, state in zip(reply[::2], reply[1::2], strict=True)
    }


def ids(reply: Sequence[bytes]) -> list[str]:
    """Of a reply that is an array of job ids."""
    return [job_id.decode(errors="replace") for job_id in reply]
