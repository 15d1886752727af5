"""The load client against a server with a fixed response."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from load_tests.clients.load_client import LoadClient, LoadResult, LoadSpec

STREAM = b'data: {"role"}\n\ndata: {"content"}\n\ndata: {"content"}\n\ndata: [DONE]\n\n'


class Server(ThreadingHTTPServer):
    """Answers every request with `body`."""

    daemon_threads = True
    body: bytes
    content_type: str
    keep_alive: bool


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", self.server.content_type)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)
        self.close_connection = not self.server.keep_alive

    def log_message(self, *_: Any) -> None:
        pass


class Truncated(Handler):
    """Sends fewer bytes than `content-length` says."""

    def end_headers(self) -> None:
        super().end_headers()
        self.server.body = self.server.body[:20]


@contextmanager
def serving(
    body: bytes,
    content_type: str = "text/event-stream",
    *,
    keep_alive: bool = True,
    handler: type[Handler] = Handler,
) -> Iterator[int]:
    server = Server(("127.0.0.1", 0), handler)
    server.body, server.content_type, server.keep_alive = body, content_type, keep_alive
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def load(port: int, **changes: Any) -> LoadResult:
    given = {"connections": 3, "requests": 12, "tokens": 2, "events": 4, "timeout_s": 10, **changes}
    return LoadClient(LoadSpec(ports=(port,), body="{}", **given)).run()


@pytest.mark.parametrize("keep_alive", [True, False])
def test_complete_streams_are_counted(keep_alive: bool) -> None:
    with serving(STREAM, keep_alive=keep_alive) as port:
        result = load(port)
    assert (result.done, result.errors, result.tokens) == (12, 0, 24), result.problems
    assert 0 < result.ttft_p50_s <= result.ttft_p99_s


def test_a_stream_with_too_few_events_is_an_error() -> None:
    with serving(STREAM) as port:
        result = load(port, tokens=3, events=5)
    assert (result.done, result.errors, result.tokens) == (0, 12, 0)
    assert result.problems == ["12x 4 events instead of 5"]


@pytest.mark.parametrize(("least", "done"), [(3, 12), (5, 0)])
def test_with_merged_tokens_a_minimum_of_events_is_enough(least: int, done: int) -> None:
    with serving(STREAM) as port:
        result = load(port, tokens=3, events=5, least_events=least)
    assert (result.done, result.errors) == (done, 12 - done)


@pytest.mark.parametrize(("contains", "done"), [("[simulated]", 12), ("[real]", 0)])
def test_a_json_answer_must_contain_the_expected_text(contains: str, done: int) -> None:
    with serving(b'{"content": "[simulated]"}', "application/json") as port:
        result = load(port, tokens=1, events=0, contains=contains)
    assert (result.done, result.errors) == (done, 12 - done)


def test_a_body_that_ends_early_is_an_error() -> None:
    with serving(STREAM, keep_alive=False, handler=Truncated) as port:
        result = load(port, connections=1, requests=1)
    assert result.problems == ["1x the connection closed before the end of the response"]
