"""HTTP on plain sockets, for requests that no HTTP library sends."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SEND_BYTES = 1 << 20
_MAX_BODY = 2000
_TIMEOUT_S = 60.0
KEY = "key-of-the-test"
"""The API key of the client that attacks."""
NEIGHBOUR_KEY = "key-of-the-neighbour"
"""The API key of the other tenant, whose streams are watched."""
API_KEYS = f"tenant:{KEY},neighbour:{NEIGHBOUR_KEY}"


@dataclass(frozen=True, slots=True)
class RawResponse:
    """What a server answered to a request."""

    status: str
    """HTTP status, or the error that ended the connection."""
    seconds: float
    """From the connection to the end of the response."""
    sent: int
    """Bytes of the request that could be sent."""
    body: bytes = b""
    """The first 2,000 bytes."""


def request(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    key: str | None = KEY,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of a request; `key` None sends none."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    if body:
        lines.append("content-type: application/json")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(path: str, body: Mapping[str, Any], key: str | None = KEY) -> bytes:
    """Return the bytes of a POST with a JSON body."""
    return request("POST", path, json.dumps(body).encode(), key=key)


def exchange(port: int, data: bytes, timeout_s: float = _TIMEOUT_S) -> RawResponse:
    """Send bytes on a new connection; read the response to its end or to the time limit."""
    began = time.monotonic()
    sent, body = 0, b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            try:
                while sent < len(data):
                    sent += connection.send(data[sent : sent + _SEND_BYTES])
            except OSError:
                pass  # the server may have answered before it closed the connection
            status, body = read_answer(connection)
    except OSError as error:
        status = type(error).__name__
    return RawResponse(status, time.monotonic() - began, sent, body)


def read_answer(connection: socket.socket) -> tuple[str, bytes]:
    """Read a response to its end, which a length or chunks tell; return its status and the first
    bytes of its body.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(1 << 16)
        if not data:
            return "closed", b""
        head += data
    head, _, body = head.partition(b"\r\n\r\n")
    left = -len(body)
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            left += int(line.partition(b":")[2])
    tail = body
    with contextlib.suppress(TimeoutError):
        while b"chunked" in head and not tail.endswith(b"0\r\n\r\n"):
            if not (data := connection.recv(1 << 20)):
                break
            tail = tail[-8:] + data
            body = (body + data)[:_MAX_BODY]
        while left > 0 and (data := connection.recv(1 << 20)):
            left -= len(data)
            body = (body + data)[:_MAX_BODY]
    return head.split(b" ", 2)[1].decode(), body


def is_reachable(port: int, timeout_s: float = 5.0) -> bool:
    """Return whether `GET /healthz` on a new connection is answered with 200."""
    return exchange(port, request("GET", "/healthz", key=None), timeout_s).status == "200"
