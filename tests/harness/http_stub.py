"""An HTTP server in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple, Self


class Request(NamedTuple):
    """What a client has sent."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What it gets."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    """`content-length` is added if it is not among them."""


class HttpStub:
    """It serves from the start on, each request on a connection of its own; `close` it.

    Subclasses say what a request is answered.
    """

    def __init__(self) -> None:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                answer = stub.answer(Request(self.command, self.path, dict(self.headers), body))
                self.send_response(answer.status)
                headers = {"content-length": str(len(answer.body)), **answer.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: Request) -> Answer:
        """The answer to a request; called in a thread of its own."""
        raise NotImplementedError

    def close(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
