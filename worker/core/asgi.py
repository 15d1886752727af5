"""Calls an ASGI application in this process, without a socket; tells which events are errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message

KEPT_HEADERS = frozenset({b"metadata"})
"""Headers of responses that clients get. `metadata`: where each embedding is, in an answer of
bytes."""

_BYTES_A_TURN = 32 << 10
"""After so many bytes of a stream other tasks have a turn: vLLM needs 10 ms to make as much with 20
alternatives for each token. It does not wait while it has outputs, which took 12 s with 64 choices.
"""


class Exchange:
    """One request to an application and its response.

    `on_chunk` is called with each part of a body that is an event stream; any other body is
    gathered in `body`. Setting `disconnect` ends the request as a client that disconnects does.
    """

    __slots__ = (
        "_finished",
        "_on_chunk",
        "_request_sent",
        "_sent_bytes",
        "body",
        "content_type",
        "disconnect",
        "headers",
        "status",
    )

    def __init__(self, on_chunk: Callable[[bytes], None] | None = None) -> None:
        self._on_chunk = on_chunk
        self.status = 0
        self.content_type = ""
        self.headers: tuple[tuple[str, str], ...] = ()
        """Those of KEPT_HEADERS that the response has."""
        self.body = bytearray()
        self.disconnect = asyncio.Event()
        self._request_sent = False
        self._sent_bytes = 0
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished.set_result(None)

    @property
    def streaming(self) -> bool:
        """Whether the response is server-sent events."""
        return self.content_type.startswith("text/event-stream")

    def run(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        content_type: bytes = b"application/json",
        query: bytes = b"",
    ) -> Awaitable[None]:
        """Call the application; the result is done when it returns, and raises what it raises."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [
                (b"host", b"worker"),
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
            "client": ("127.0.0.1", 0),
            "server": ("worker", 80),
            "state": {},
        }

        async def receive() -> Message:
            if not self._request_sent:
                self._request_sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self.disconnect.wait()
            return {"type": "http.disconnect"}

        # Not awaited here: each coroutine in between would cost time for every token.
        return app(scope, receive, self._send)

    def _send(self, message: Message) -> Awaitable[None]:
        # Called for every token: awaiting one finished future costs less than a coroutine.
        if message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self._on_chunk is None:
                self.body += part
            elif part:
                self._on_chunk(part)
                self._sent_bytes += len(part)
                if self._sent_bytes >= _BYTES_A_TURN:
                    self._sent_bytes = 0
                    return asyncio.sleep(0)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message["headers"]:
                if name == b"content-type":
                    self.content_type = value.decode("latin-1")
                elif name in KEPT_HEADERS:
                    self.headers += ((name.decode(), value.decode("latin-1")),)
            if not self.streaming:
                self._on_chunk = None
        return self._finished


_ERROR_BEGINNINGS = (b'data: {"error"', b"event: error\n")
"""The beginnings of OpenAI's and of Anthropic's error events."""


def is_error(event: bytes) -> bool:
    """Whether this is an error event, as vLLM makes them."""
    return event.startswith(_ERROR_BEGINNINGS)
