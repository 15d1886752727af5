"""HTTP on plain sockets, for requests that no library would send."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PIECE = 1 << 20
_KEPT = 2000
_TIMEOUT_S = 60.0
KEY = "key-of-the-test"
"""Of everybody who has one."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a request."""

    status: str
    """Of HTTP, or how the connection ended instead."""
    seconds: float
    sent: int
    """Bytes that the server took."""
    body: bytes = b""
    """Its beginning."""


def request(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    key: str | None = KEY,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """As it goes onto the wire."""
    lines = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
    if body:
        lines.append("content-type: application/json")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A request with a JSON body."""
    return request("POST", path, json.dumps(body).encode())


def exchange(port: int, data: bytes, timeout_s: float = _TIMEOUT_S) -> Answered:
    """Send on a connection of its own, read the answer to its end or until the time is over."""
    began = time.monotonic()
    sent, body = 0, b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            try:
                while sent < len(data):
                    sent += connection.send(data[sent : sent + _PIECE])
            except OSError:
                pass  # it may have answered before it closed
            status, body = read_answer(connection)
    except OSError as error:
        status = type(error).__name__
    return Answered(status, time.monotonic() - began, sent, body)


def read_answer(connection: socket.socket) -> tuple[str, bytes]:
    """Status and beginning of the next answer, read to its end where its length is known."""
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
    with contextlib.suppress(TimeoutError):
        while left > 0 and (data := connection.recv(1 << 20)):
            left -= len(data)
            body = (body + data)[:_KEPT]
    return head.split(b" ", 2)[1].decode(), body


def can_connect(port: int, timeout_s: float = 5.0) -> bool:
    """Does somebody else's probe get an answer?"""
    return exchange(port, request("GET", "/healthz", key=None), timeout_s).status == "200"
