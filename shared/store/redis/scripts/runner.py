"""Calls scripts: each on the server that holds its shard, with the scripts loaded first.

A Redis that has lost its scripts (FUNCTION FLUSH, SCRIPT FLUSH, a restart without its data) answers
with ScriptsMissing, a StoreUnavailable: nothing was carried out. Coroutines of this module load
the scripts and repeat the call. Where no coroutine runs (`start`) the caller sees the error as a
lost connection, which it handles anyway; its next call loads the scripts. The same goes for a slot
of a cluster that no node serves for now: coroutines wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any

from shared.platform.tasks import end
from shared.store.connection import Argument, Connection, ScriptsMissing, SlotUnavailable
from shared.store.interface import StoreRefused, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.scripts.loader import NAMES, library, script
from shared.store.servers import once_served


class Scripts:
    """The scripts of one Redis. Every script may be repeated after a lost reply.

    Arguments and replies are those of the Lua scripts.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._is_of_slot = redis.server.is_of_slot
        self.connection = Connection(redis.server, on_error=self._check_error)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: dict[str, tuple[str, str]] = {}  # name -> command, and the name Redis knows

    async def close(self) -> None:
        """End the calls that wait, and close the connection."""
        await end(self._tasks)
        self.connection.close()

    async def load(self) -> None:
        """Load them, loaded or not. Calls do it by themselves where it is needed."""
        prefix, text = library()
        try:
            await self._redis.function_load(text)
        except StoreRefused as error:
            if "already exists" not in str(error):
                # Its memory is full, or this user may not load functions.
                await self._load_scripts()
                return
        self._calls = {name: ("FCALL", f"{prefix}_{name}") for name in NAMES}

    async def _load_scripts(self) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for name in NAMES:
            pipe.script_load(script(name))
        hashes = await pipe.execute()
        self._calls = {
            name: ("EVALSHA", sha if isinstance(sha, str) else sha.decode())
            for name, sha in zip(NAMES, hashes, strict=True)
        }

    async def ready(self) -> None:
        """Load the scripts if that was not done yet."""
        if not self._calls:
            await self.load()

    async def run(
        self, name: str, shard: int, arguments: Sequence[Argument], *, wait: bool = True
    ) -> Any:
        """Call a script and return its reply. Raises StoreError.

        `wait`: while no node of a cluster serves the slot, up to `SLOT_WAIT_S`.
        """
        try:
            await self.ready()
            reply = self.connection.call(*self._command(name, shard, arguments))
            return await self._repeated_if_missing(reply, name, shard, arguments)
        except SlotUnavailable:
            if not wait:
                raise
        return await once_served(partial(self.run, name, shard, arguments, wait=False))

    def start(self, name: str, shard: int, arguments: Sequence[Argument]) -> asyncio.Future[Any]:
        """`run`, without a coroutine where there is a connection; the future gets the reply."""
        if not self._is_of_slot:
            with contextlib.suppress(StoreUnavailable):  # before anything was sent
                return self.connection.send(*self._command(name, shard, arguments))
        task = asyncio.create_task(self.run(name, shard, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_on_open_connection(
        self, name: str, shard: int, arguments: Sequence[Argument]
    ) -> asyncio.Future[Any]:
        """`start`, but without a connection the future fails: this never connects."""
        try:
            return self.connection.send(*self._command(name, shard, arguments))
        except StoreUnavailable as error:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reply.set_exception(error)
            return reply

    def start_on(
        self, connection: Connection, name: str, shard: int, arguments: Sequence[Argument]
    ) -> Coroutine[Any, Any, Any]:
        """Send a call on a connection of the caller's to this server; await the reply.

        The call has been sent when this returns. Raises StoreUnavailable if the scripts are not
        `ready`: another call may have found that Redis has lost them.
        """
        reply = connection.send(*self._command(name, shard, arguments))
        return self._repeated_if_missing(reply, name, shard, arguments)

    def _command(
        self, name: str, shard: int, arguments: Sequence[Argument]
    ) -> tuple[Argument, ...]:
        if not self._calls:
            raise StoreUnavailable("the scripts are not loaded")
        return (*self._calls[name], 1, keys.base(shard), *arguments)

    async def _repeated_if_missing(
        self, reply: Awaitable[Any], name: str, shard: int, arguments: Sequence[Argument]
    ) -> Any:
        try:
            return await reply
        except ScriptsMissing:
            # Not on a caller's connection: a blocking command may follow the call there.
            await self.load()
            return await self.connection.call(*self._command(name, shard, arguments))

    def _check_error(self, error: Exception) -> None:
        if isinstance(error, ScriptsMissing):
            self._calls = {}


def job_states(reply: Sequence[bytes]) -> dict[str, str]:
    """Job id -> state, of a reply that is a flat array of both."""
    return {
        job_id.decode(): state.decode()
        for job_id, state in zip(reply[::2], reply[1::2], strict=True)
    }


def ids(reply: Sequence[bytes]) -> list[str]:
    """Of a reply that is an array of job ids."""
    return [job_id.decode(errors="replace") for job_id in reply]
