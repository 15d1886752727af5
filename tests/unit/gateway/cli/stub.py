"""A gateway of canned answers on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What a command has sent."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """A canned answer: an object as JSON, or bytes as they are."""

    body: Any
    status: int = 200
    content_type: str = "application/json"


def error(message: str, status: int, code: str | None = None) -> Answer:
    """An error in OpenAI's shape."""
    body = {"message": message, "type": "server_error", "param": None, "code": code}
    return Answer({"error": body}, status)


def events(*parts: tuple[str, Any]) -> Answer:
    """A stream of named events."""
    text = "".join(
        f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n"
        for number, (name, data) in enumerate(parts)
    )
    return Answer(text.encode(), content_type="text/event-stream")


@dataclass
class StubGateway:
    """Answers by method and path; the query is part of the path if such an answer exists."""

    answers: dict[str, Any] = field(default_factory=dict)
    """`GET /jobs` -> an Answer, the body of one, or a list of them, one for each request."""
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub._serve(self)

            do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()

    def sent(self) -> list[tuple[str, Any]]:
        """Each request's method and path, and its body."""
        return [(f"{each.method} {each.path}", each.body) for each in self.requests]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        method, path = handler.command, handler.path
        given = json.loads(body) if body else None
        self.requests.append(Request(method, path, given, dict(handler.headers)))
        answer = self._answer(f"{method} {path}")
        text = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        handler.send_header("content-type", answer.content_type)
        handler.send_header("content-length", str(len(text)))
        handler.send_header("x-flotilla-job-id", "job_1")
        handler.end_headers()
        handler.wfile.write(text)

    def _answer(self, line: str) -> Answer:
        for key in (line, line.partition("?")[0]):
            found = self.answers.get(key)
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if found is not None:
                return found if isinstance(found, Answer) else Answer(found)
        return error(f"no answer to {line}", 404, "unknown_route")
