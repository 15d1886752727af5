"""A TCP server of a test's own event loop that leaves no connection open behind it.

`asyncio.start_server` of Python 3.11 may leave some: a connection that was accepted just before the
server is closed is neither handled nor closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from shared.platform.tasks import end

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def tcp_server(
    handle: Handler, host: str, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Gives the port on which each connection is handled, until the context is left."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    transports: list[asyncio.Transport] = []

    async def serve(connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
        transports.append(transport)
        try:
            await handle(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        finally:
            transport.close()  # what was written is sent

    def accept() -> None:
        with contextlib.suppress(BlockingIOError):
            connection = open_here.enter_context(listener.accept()[0])
            connection.setblocking(False)
            tasks.append(loop.create_task(serve(connection)))

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        contextlib.ExitStack() as open_here,
        socket.create_server((host, port), family=family, backlog=128) as listener,
    ):
        listener.setblocking(False)
        loop.add_reader(listener, accept)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)
            await end(tasks)
            for transport in transports:
                transport.abort()
            await asyncio.sleep(0)  # in which they close
