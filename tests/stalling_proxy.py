"""A TCP proxy in front of Redis that can fall silent, as a network does that drops packets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.redis_server import free_port
from tests.tcp_server import tcp_server


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
