"""A line to Redis: one connection on which calls do not wait for each other's replies.

redis-py's own call takes a connection out of a pool, writes, waits, reads and puts it back, at five
times the CPU time of the call itself; here calls are written at once and replies are matched in
their order. redis-py still connects (address, TLS, authentication, database), then hands its socket
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

Argument = str | bytes | int | float

_ERRORS = {"NOSCRIPT": NoScriptError, "OOM": OutOfMemoryError, "READONLY": ReadOnlyError}
_NOTHING = object()
_MESSAGE = b"message"


def _error(text: str) -> ResponseError:
    if text == "ERR Function not found":
        return NoScriptError(text)
    kind: type[ResponseError] = _ERRORS.get(text.partition(" ")[0], ResponseError)
    return kind(text)


def _epoll_of(transport: asyncio.Transport) -> tuple[select.epoll | None, int]:
    """The epoll of uvloop's loop, to take the transport's socket out. None with others and for TLS,
    whose layer goes on reading when it is paused."""
    backend = getattr(asyncio.get_running_loop(), "_get_backend_id", None)
    if backend is None or not hasattr(select, "epoll"):
        return None, -1
    if transport.get_extra_info("sslcontext") is not None:
        return None, -1
    # Closed with the object, so not the loop's own.
    return select.epoll.fromfd(os.dup(backend())), transport.get_extra_info("socket").fileno()


class Line(asyncio.Protocol):
    """Connects when it is first used, and again after a loss; calls that were on their way fail.

    `on_message` hears what arrives on the channels that were subscribed to.
    """

    def __init__(
        self, redis: Redis, timeout_s: float, on_message: Callable[[bytes], None] | None = None
    ) -> None:
        self._pool: Any = redis.connection_pool
        self._timeout_s = timeout_s
        self._on_message = on_message
        self._connection: Any = None
        self._transport: asyncio.Transport | None = None
        self._before: Any = None  # redis-py's protocol, which hears of the end too
        self._connecting = asyncio.Lock()
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._epoll: select.epoll | None = None
        self._fd = -1
        self._watch: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._n_replies = 0
        self._n_seen = 0
        self.losses = 0
        """How often a connection was lost: after it Redis may know less than before."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()

    async def call(self, *command: Argument, patience_s: float = 0.0) -> Any:
        """The reply, bytes undecoded. Raises redis' errors; after a RedisTimeoutError or
        RedisConnectionError the command may have been carried out.

        `patience_s`: the reply may wait that long for the next call or `read_on`. Then it wakes
        nobody, which costs both sides more than the call itself.
        """
        if self._transport is None:
            await self.connect()
        return await self.send(*command, patience_s=patience_s)

    def read_on(self) -> None:
        """Replies that were left waiting are read now."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            if self._transport is not None:
                self._transport.resume_reading()

    def send(self, *command: Argument, patience_s: float = 0.0) -> asyncio.Future[Any]:
        """As `call`, but the command is under way when this returns; there must be a connection."""
        transport = self._transport
        if transport is None:
            raise RedisConnectionError("Connection to Redis lost")
        self.read_on()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(reply)
        transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub says one
        if patience_s and len(self._waiting) == 1:
            self._pause(transport)
            self._rest = loop.call_later(patience_s, self.read_on)
        if self._watch is None:
            self._n_seen = self._n_replies
            self._watch = loop.call_later(self._timeout_s, self._look)
        return reply

    def _pause(self, transport: asyncio.Transport) -> None:
        transport.pause_reading()
        if self._epoll is None or transport.is_closing():  # its number may be another's already
            return
        if not transport.get_write_buffer_size():
            # libuv leaves a socket that it does not read in its epoll until something comes, and
            # so would be woken by what must not wake us. Later it puts it back in by itself; not
            # while it waits to write, which it does in the same place.
            with contextlib.suppress(FileNotFoundError):  # it has not put it in yet
                self._epoll.unregister(self._fd)

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
            connection: Any = self._pool.make_connection()
            await connection.connect()
            # There is no public way to the socket of a connection that redis-py has set up.
            transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
            self._before = transport.get_protocol()
            transport.set_protocol(self)
            self._reader = hiredis.Reader(replyError=_error, notEnoughData=_NOTHING)
            self._connection, self._transport = connection, transport
            self._epoll, self._fd = _epoll_of(transport)
            self.lost.clear()

    # --- asyncio.Protocol ---

    def data_received(self, data: bytes) -> None:
        reader, listens = self._reader, self._on_message
        reader.feed(data)
        while (reply := reader.gets()) is not _NOTHING:
            if listens is not None and isinstance(reply, list) and reply[0] == _MESSAGE:
                listens(reply[2])
                continue
            self._n_replies += 1
            waiting = self._waiting.popleft()
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
        self._break(RedisConnectionError(f"Connection to Redis lost: {exc or 'closed by server'}"))

    def _look(self) -> None:
        """Nothing has come for a while although something should."""
        self._watch = None
        if not self._waiting:
            return
        if self._n_seen == self._n_replies:
            self._break(RedisTimeoutError("Redis does not answer"))
            return
        self._n_seen = self._n_replies
        self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def _break(self, error: Exception) -> None:
        transport, self._transport = self._transport, None
        self.read_on()
        if transport is not None:
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
