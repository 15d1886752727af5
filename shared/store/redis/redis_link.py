"""What carries commands to Redis and replies back, once redis-py has connected.

`Link` takes over the transport of redis-py's connection, for which there is no public
interface; a reply then costs a tenth of what redis-py's own reading costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis

from shared.store.interface import StoreUnavailable
from shared.store.redis.store_errors import refused, store_errors

OnReply = Callable[[Any], None]
"""Called with each reply and each published message, in their order; an error reply is an
exception."""
OnLost = Callable[[Exception | None], None]
"""Called once if the connection ends, with the reason if there is one."""


_INCOMPLETE = object()


async def open_link(pool: Any, on_reply: OnReply, on_lost: OnLost) -> Link:
    """A new connection as redis-py's `pool` makes them. Raises the store's errors."""
    connection = pool.make_connection()
    with store_errors():
        await connection.connect()
    transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
    if transport.is_closing():  # nothing will report its end to a link
        await connection.disconnect(nowait=True)
        raise StoreUnavailable("Redis has closed a new connection")
    return Link(connection, transport, on_reply, on_lost)


class Link(asyncio.Protocol):
    """An open connection: reads and writes on the transport itself. `write` does not wait."""

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
        """End it at once. No callback is called from then on."""
        self._aborted = True
        # The transport may still deliver something: it must not reach our callbacks.
        self._transport.set_protocol(self._redis_py)
        self._transport.abort()

    async def closed(self) -> None:
        """Returns when what redis-py holds of it is released. Call it after the end."""
        await self._connection.disconnect(nowait=True)
