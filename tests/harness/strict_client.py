"""An HTTP client of one connection that checks every byte that the server sends.

httpx tolerates or hides a stray byte; tests of whether bytes reach the wrong client must see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

_DEADLINE_S = 150.0
CHUNK_ID = re.compile(rb'"id":"[a-z]+-([^"]+)"')
_NO_LINGER = struct.pack("ii", 1, 0)


class ProtocolViolation(AssertionError):
    """The server sent bytes that are not a valid response to the request."""


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class StrictClient:
    """One connection. Each method fails after 150 s."""

    opened: ClassVar[set[StrictClient]] = set()
    """Those that neither `close` nor `reset` has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> StrictClient:
        where = urlsplit(url)
        client = cls(*await asyncio.open_connection(where.hostname, where.port))
        cls.opened.add(client)
        return client

    @classmethod
    def reset_all(cls) -> None:
        """Reset all that are open, at the same time. A test that has failed leaves some."""
        for client in list(cls.opened):
            client.reset()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        """Read status line and headers of a response."""
        match = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [ -~]*\r\n", line := await self._line())
        if match is None:
            raise ProtocolViolation(f"not a status line: {line!r}")
        headers = {}
        while (line := await self._line()) != b"\r\n":
            field = re.fullmatch(rb"([a-z0-9-]+): ([^\r\n]*)\r\n", line)
            if field is None:
                raise ProtocolViolation(f"not a header: {line!r}")
            headers[field[1]] = field[2]
        return int(match[1]), headers

    async def chunk(self, job_id: bytes) -> bytes:
        """Read the next chunk of a body, empty at its end; all its events must be of `job_id`."""
        size = await self._line()
        if re.fullmatch(rb"[0-9a-f]+\r\n", size) is None:
            raise ProtocolViolation(f"not a chunk size: {size!r}")
        data = await self._exactly(int(size, 16) + 2)
        if not data.endswith(b"\r\n"):
            raise ProtocolViolation(f"not the end of a chunk: {data!r}")
        data = data[:-2]
        if data and not re.fullmatch(rb"(data: [^\n]+\n\n|: [^\n]*\n)+", data):
            raise ProtocolViolation(f"not events: {data!r}")
        others = set(CHUNK_ID.findall(data)) - {job_id}
        if others:
            raise ProtocolViolation(f"a chunk of {others} for {job_id!r}")
        return data

    async def reply(self) -> Reply:
        """Read a complete response."""
        status, headers = await self.head()
        if b"content-length" in headers:
            return Reply(status, headers, await self._exactly(int(headers[b"content-length"])))
        if headers.get(b"transfer-encoding") != b"chunked":
            raise ProtocolViolation(f"neither length nor chunks: {headers}")
        body = b""
        while data := await self.chunk(headers.get(b"x-flotilla-job-id", b"")):
            body += data
        return Reply(status, headers, body)

    async def expect_silence(self, wait_s: float) -> None:
        """Fail if any data arrives within `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                data = await self._reader.read(1 << 16)
        except TimeoutError:
            return
        raise ProtocolViolation(f"unexpected data: {data!r}")

    async def read_for(self, wait_s: float) -> bytes:
        """Return all data of `wait_s` seconds, or until the server closes the connection."""
        data = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(wait_s):
                while more := await self._reader.read(1 << 16):
                    data += more
        return data

    async def rest(self) -> bytes:
        """Read all that comes until the server closes the connection."""
        async with asyncio.timeout(_DEADLINE_S):
            return await self._reader.read()

    def close(self) -> None:
        """Close the connection with a FIN, or with a RST if there is unread data."""
        self.opened.discard(self)
        self._writer.transport.abort()

    def reset(self) -> None:
        """Close the connection with a RST."""
        with contextlib.suppress(OSError):  # the server has ended it
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER
            )
        self.close()

    def half_close(self) -> None:
        """Close the sending side only."""
        self._writer.write_eof()

    async def _line(self) -> bytes:
        async with asyncio.timeout(_DEADLINE_S):
            line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ProtocolViolation(f"the connection ended with {line!r}")
        return line

    async def _exactly(self, size: int) -> bytes:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ProtocolViolation(f"the connection ended with {error.partial!r}") from error


def request(
    method: str, path: str, key: str, body: Any = None, *headers: str, pad: int = 0
) -> bytes:
    """Return a request as bytes, with `pad` spaces after its JSON."""
    content = b"" if body is None else json.dumps(body).encode()
    content += b" " * pad
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        *headers,
    ]
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content
