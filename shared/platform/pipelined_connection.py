"""A line to Redis: one connection on which calls do not wait for each other's replies.

redis-py's own call takes a connection out of a pool, writes, waits, reads and puts it back, at five
times the CPU time of the call itself; here calls are written at once and replies are matched in
their order. redis-py still connects (address, TLS, authentication, database), then hands its socket
over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

Argument = str | bytes | int | float


class ScriptsMissing(NoScriptError, RedisConnectionError):
    """Redis lacks the script or function of a call, so nothing was carried out.

    A RedisConnectionError, as callers repeat a call after a lost connection anyway.
    """


_ERRORS = {"NOSCRIPT": ScriptsMissing, "OOM": OutOfMemoryError, "READONLY": ReadOnlyError}
_NOTHING = object()
_MESSAGE = b"message"


def _error(text: str) -> ResponseError:
    if text == "ERR Function not found":
        return ScriptsMissing(text)
    kind: type[ResponseError] = _ERRORS.get(text.partition(" ")[0], ResponseError)
    return kind(text)


class PipelinedConnection(asyncio.Protocol):
    """Connects when it is first used, and again after a loss; calls that were on their way fail.

    `on_message` hears what arrives on the channels that were subscribed to, `on_error` of errors
    that Redis replies, before the caller does.
    """

    def __init__(
        self,
        redis: Redis,
        timeout_s: float,
        on_message: Callable[[bytes], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._pool: Any = redis.connection_pool
        self._timeout_s = timeout_s
        self._on_message = on_message
        self._on_error = on_error
        self._connection: Any = None
        self._transport: asyncio.Transport | None = None
        self._before: Any = None  # redis-py's protocol, which hears of the end too
        self._connecting = asyncio.Lock()
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop: asyncio.AbstractEventLoop  # the connection's
        self._watch: asyncio.TimerHandle | None = None
        self._n_replies = 0
        self._n_seen = 0
        self.losses = 0
        """How often a connection was lost: after it Redis may know less than before."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()

    async def call(self, *command: Argument) -> Any:
        """The reply, bytes undecoded. Raises redis' errors; after a RedisTimeoutError or
        RedisConnectionError the command may have been carried out.
        """
        if self._transport is None:
            await self.connect()
        return await self.send(*command)

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """As `call`, but the command is under way when this returns; there must be a connection."""
        transport = self._transport
        if transport is None:
            raise RedisConnectionError("Connection to Redis lost")
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(reply)
        transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub says one
        if self._watch is None:
            self._n_seen = self._n_replies
            self._watch = self._loop.call_later(self._timeout_s, self._look)
        return reply

    async def close(self) -> None:
        """Calls that are on their way fail; the next one would connect again."""
        self._break(RedisConnectionError("closed"))
        await self._forget()

    async def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def connect(self) -> None:
        """Nothing, if there is a connection."""
        if self._transport is not None:
            return
        async with self._connecting:
            if self._transport is not None:
                return
            await self._forget()
            self._loop = asyncio.get_running_loop()
            connection: Any = self._pool.make_connection()
            await connection.connect()
            # There is no public way to the socket of a connection that redis-py has set up.
            transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
            self._before = transport.get_protocol()
            transport.set_protocol(self)
            self._reader = hiredis.Reader(replyError=_error, notEnoughData=_NOTHING)
            self._connection, self._transport = connection, transport
            self.lost.clear()

    # --- asyncio.Protocol ---

    def data_received(self, data: bytes) -> None:
        reader, listens = self._reader, self._on_message
        reader.feed(data)
        while (reply := reader.gets()) is not _NOTHING:
            if listens is not None and isinstance(reply, list) and reply[0] == _MESSAGE:
                listens(reply[2])
                continue
            if not self._waiting:
                self._break(RedisConnectionError("Redis sent a reply that nobody waits for"))
                return
            self._n_replies += 1
            waiting = self._waiting.popleft()
            if self._on_error is not None and isinstance(reply, Exception):
                self._on_error(reply)
            if waiting.done():
                continue
            if isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)
            if isinstance(reply, ReadOnlyError):
                # A master that became a replica: its successor is found by connecting anew.
                self._break(RedisConnectionError("connected to a replica"))
                return

    def connection_lost(self, exc: Exception | None) -> None:
        if self._before is not None:
            self._before.connection_lost(exc)
        self._lose(exc)

    def _lose(self, exc: Exception | None = None) -> None:
        self._break(RedisConnectionError(f"Connection to Redis lost: {exc or 'closed by server'}"))

    def _look(self) -> None:
        """A while after a call: has something come, if something should?"""
        self._watch = None
        if not self._waiting:
            return
        if self._n_seen == self._n_replies:
            self._break(RedisTimeoutError("Redis does not answer"))
            return
        self._n_seen = self._n_replies
        self._watch = self._loop.call_later(self._timeout_s, self._look)

    def _break(self, error: Exception) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            # What it may still tell of must not be taken for the next connection's.
            transport.set_protocol(self._before)
            transport.abort()
            self.losses += 1
        self.lost.set()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            if not reply.done():
                reply.set_exception(error)
