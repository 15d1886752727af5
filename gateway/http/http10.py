"""Answers to HTTP/1.0 clients, such as nginx by default: these know no chunks."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Http10Cycle(RequestResponseCycle):
    """A body of unknown length is sent as it is, and ends with the connection."""

    _ends_with_connection = False

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            if not any(name == b"content-length" for name, _ in message.get("headers", ())):
                self.chunked_encoding = self.keep_alive = False
                self._ends_with_connection = True
        elif self._ends_with_connection:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
