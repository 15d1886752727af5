"""Writes one response: its head with the first bytes, then the rest.

Token path: gateway/core/answer.py -> here for the first chunk, asgi_io.py for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Send

from gateway.http.asgi_io import ChunkWriter, chunk_writer, start_response_at_once

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""


class ResponseWriter:
    """The response to one request."""

    __slots__ = ("_send", "started", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        """Status and headers are sent and can't be changed."""
        self.status = 0
        """The status code, once `start` was called."""

    async def start(self, status: int, headers: Headers, body: bytes, *, more: bool) -> None:
        """Send status, headers and the first part of the body. `more`: other parts follow."""
        self.status = status
        if start_response_at_once(self._send, status, headers, body, more=more):
            self.started = True
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self.started = True  # though the body may have to wait
        await self.write(body, more=more)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send the next part of the body; waits while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def chunk_writer(self) -> ChunkWriter:
        """Writes further parts without waiting. The response must have been started."""
        return chunk_writer(self._send)
