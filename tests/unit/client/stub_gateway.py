"""A gateway of one answer on a real socket, which ends its connection after any number of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

JOB = "job_000stub"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that ends with a RST."""


class Request(NamedTuple):
    """What a client has sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class StubGateway:
    """Serves `events` as the answer to every POST, and their rest as a stream of the job."""

    events: Sequence[bytes]
    breaks: list[int] = field(default_factory=list)
    """For each response in turn: after how many of its bytes the connection ends."""
    statuses: list[int] = field(default_factory=list)
    """For each response in turn: an error with this status instead of the answer (0: none)."""
    chunk_bytes: int = 1 << 16
    resets: bool = False
    """Connections that break do so with a RST."""
    ends: bool = True
    """A stream's end is marked; else the connection's end is the stream's."""
    whole: bytes = b""
    """The answer, if it is not a stream."""
    headers: str = ""
    """More header lines of streams."""
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on."""
        with contextlib.suppress(OSError):  # closed already
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    @property
    def response_bytes(self) -> int:
        """How many bytes an undisturbed response to a POST has."""
        return len(self._response(Request("POST", "/v1/chat/completions", {}, b"")))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while request := _read_request(reader):
                self.requests.append(request)
                data = self._response(request)
                limit = self.breaks.pop(0) if self.breaks else len(data)
                connection.sendall(data[:limit])
                if limit < len(data):
                    if self.resets:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    return
                if b"transfer-encoding" not in data and b"content-length" not in data:
                    return

    def _response(self, request: Request) -> bytes:
        status = self.statuses.pop(0) if self.statuses else 0
        if status:
            return _whole(status, b'{"error": {"message": "no", "code": "refused"}}')
        if request.method == "POST" and self.whole:
            return _whole(200, self.whole)
        if request.path.endswith("/cancel"):
            return _whole(200, b"{}")
        events = list(self.events)
        if request.method == "GET":
            after, crc32 = parameters(request.path)
            n, have = 0, 0
            while n < after:
                if not events[0].startswith(b":"):
                    n, have = n + 1, zlib.crc32(events[0], have)
                del events[0]
            if have != crc32:
                return _whole(409, b'{"error": {"code": "stream_reset"}}')
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        head += f"x-flotilla-job-id: {JOB}\r\n{self.headers}"
        body = b"".join(events)
        if not self.ends:
            return head.encode() + b"connection: close\r\n\r\n" + body
        step = self.chunk_bytes
        parts = [body[n : n + step] for n in range(0, len(body), step)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        return head.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def parameters(path: str) -> tuple[int, int]:
    """`after` and `crc32` of a request for the rest of a stream."""
    route, _, query = path.partition("?")
    assert route == f"/jobs/{JOB}/stream"
    fields = dict(part.split("=") for part in query.split("&"))
    assert 1 <= len(fields["crc32"]) <= 8
    return int(fields["after"]), int(fields["crc32"], 16)


def _whole(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _read_request(reader: object) -> Request | None:
    readline = reader.readline  # type: ignore[attr-defined]
    try:
        line = readline()
        if not line:
            return None
        method, path, _ = line.decode().split()
        headers = {}
        while (line := readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        body = reader.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    except OSError:
        return None
    return Request(method, path, headers, body)


def openai_events(*texts: str) -> list[bytes]:
    """A streamed chat completion, with comments in between."""
    chunks = [
        json.dumps({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False)
        for text in texts
    ]  # fmt: skip
    events = [f"data: {chunk}\n\n".encode() for chunk in chunks]
    return [b": queued, position 1\n", *events, b": in_progress\n", b"data: [DONE]\n\n"]


ANTHROPIC_EVENTS = [
    b'event: message_start\ndata: {"type": "message_start"}\n\n',
    b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n',
    b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
]
