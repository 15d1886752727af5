"""What carries commands to Redis and replies back, once redis-py has connected.

`TransportLink` takes over the transport of redis-py's connection, for which there is no public
interface; a reply then costs a tenth of what redis-py's own reading costs. `PublicLink` uses
redis-py's public calls and is chosen where the transport can't be taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import hiredis
from redis.exceptions import ResponseError

from shared.platform.fast_paths import FastPath
from shared.platform.tasks import end
from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis.store_errors import refused, store_error, store_errors

OnReply = Callable[[Any], None]
"""Called with each reply and each published message, in their order; an error reply is an
exception."""
OnLost = Callable[[Exception | None], None]
"""Called once if the connection ends, with the reason if there is one."""


_INCOMPLETE = object()
_TRANSPORT_METHODS = ("write", "abort", "is_closing", "get_protocol", "set_protocol")

TAKE_OVER = FastPath("redis-py's transport")


class Link(Protocol):
    """An open connection."""

    def write(self, data: bytes, /) -> None:
        """Send a packed command, in the order of the calls. Does not wait."""

    def abort(self) -> None:
        """End it at once. No callback is called from then on."""

    async def closed(self) -> None:
        """Returns when what redis-py holds of it is released. Call it after the end."""


async def open_link(pool: Any, on_reply: OnReply, on_lost: OnLost) -> Link:
    """A new connection as redis-py's `pool` makes them. Raises the store's errors."""
    connection = pool.make_connection()
    with store_errors():
        await connection.connect()
    if TAKE_OVER.enabled():
        # There is no public way to the transport of a connection that redis-py has set up.
        transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        if all(hasattr(transport, name) for name in _TRANSPORT_METHODS):
            if transport.is_closing():  # nothing will report its end to a link
                await connection.disconnect(nowait=True)
                raise StoreUnavailable("Redis has closed a new connection")
            return TransportLink(connection, transport, on_reply, on_lost)
        TAKE_OVER.disable("a connection of redis-py has no `_writer` with a transport")
    return PublicLink(connection, on_reply, on_lost)


class TransportLink(asyncio.Protocol):
    """Reads and writes on the transport itself."""

    def __init__(
        self, connection: Any, transport: asyncio.Transport, on_reply: OnReply, on_lost: OnLost
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._aborted = False
        self._reader = hiredis.Reader(replyError=refused, notEnoughData=_INCOMPLETE)
        self.write = transport.write
        self._redis_py: Any = transport.get_protocol()  # also notified of the end
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """The transport has read `data`."""
        gets = self._reader.gets
        self._reader.feed(data)
        while not self._aborted and (reply := gets()) is not _INCOMPLETE:
            self._on_reply(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        self._redis_py.connection_lost(exc)
        self._on_lost(exc)

    def abort(self) -> None:
        """See Link."""
        self._aborted = True
        # The transport may still deliver something: it must not reach our callbacks.
        self._transport.set_protocol(self._redis_py)
        self._transport.abort()

    async def closed(self) -> None:
        """See Link."""
        await self._connection.disconnect(nowait=True)


class PublicLink:
    """Two tasks on redis-py's public calls: one writes, one reads."""

    def __init__(self, connection: Any, on_reply: OnReply, on_lost: OnLost) -> None:
        connection.socket_timeout = (
            None  # replies may be far apart; PipelinedConnection has a timer
        )
        self._connection = connection
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._aborted = False
        self._unsent: list[bytes] = []
        self._written = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(part)) for part in (self._read, self._write)]

    def write(self, data: bytes, /) -> None:
        """See Link."""
        self._unsent.append(data)
        self._written.set()

    def abort(self) -> None:
        """See Link."""
        self._aborted = True
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """See Link."""
        await end(self._tasks)
        await self._connection.disconnect(nowait=True)

    async def _run(self, part: Callable[[], Any]) -> None:
        try:
            with store_errors():
                await part()
        except StoreError as error:
            if not self._aborted:
                self._on_lost(error)

    async def _write(self) -> None:
        while not self._aborted:
            await self._written.wait()
            self._written.clear()
            data, self._unsent = self._unsent, []
            await self._connection.send_packed_command(data, check_health=False)

    async def _read(self) -> None:
        try:
            while not self._aborted:
                try:
                    reply = await self._connection.read_response(
                        disable_decoding=True, push_request=True
                    )
                except ResponseError as error:
                    reply = store_error(error)
                self._on_reply(reply)
        finally:
            await self._connection.disconnect(nowait=True)
