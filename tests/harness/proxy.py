"""TCP servers of a test: one that handles connections, and a proxy that can fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from shared.platform.tasks import end
from tests.harness.servers import free_port


class StallingProxy:
    """Connections stay open while it is silent, and nothing passes either way."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.connections = 0
        """Accepted so far."""
        self._target_port = target_port
        self._passing = asyncio.Event()
        self._passing.set()

    def stall(self) -> None:
        """Fall silent; connections made from now on are silent too."""
        self._passing.clear()

    def resume(self) -> None:
        """Pass everything on again, also what was held back."""
        self._passing.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StallingProxy]:
        """Listen until the context is left."""
        async with tcp_server(self._pass_on, "127.0.0.1", self.port):
            yield self

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            with contextlib.closing(far_writer):
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._copy(reader, far_writer))
                    both.create_task(self._copy(far_reader, writer))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


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
