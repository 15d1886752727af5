"""Receivers of webhooks on loopback: good ones, and bad ones of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.harness.proxy import tcp_server

Answer = Callable[["Call", asyncio.StreamWriter], Awaitable[None]]


class Call(NamedTuple):
    """What a receiver got."""

    head: str
    headers: dict[str, str]
    body: bytes


class Receiver(NamedTuple):
    """A receiver that listens."""

    url: str
    calls: list[Call]


@contextlib.asynccontextmanager
async def receiver(
    answer: Answer, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Listens until the end of the context."""
    calls: list[Call] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            calls.append(call := Call(head, headers, body))
            await answer(call, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            pass

    scheme = "http" if tls is None else "https"
    shown = f"[{host}]" if ":" in host else host
    async with tcp_server(handle, host, tls=tls) as port:
        yield Receiver(f"{scheme}://{shown}:{port}/hook", calls)


def answers(status: int, *headers: str) -> Answer:
    """A receiver that answers with this status."""

    async def answer(call: Call, writer: asyncio.StreamWriter) -> None:
        lines = (f"HTTP/1.1 {status} Status", *headers, "content-length: 0", "", "")
        writer.write("\r\n".join(lines).encode())
        await writer.drain()

    return answer


def answers_in_turn(*each: Answer) -> Answer:
    """A receiver that treats each call as the next one of these does."""
    left = list(each)

    async def answer(call: Call, writer: asyncio.StreamWriter) -> None:
        await left.pop(0)(call, writer)

    return answer


async def hangs(call: Call, writer: asyncio.StreamWriter) -> None:
    """Reads the request and never answers."""
    await asyncio.sleep(3600)


async def drips(call: Call, writer: asyncio.StreamWriter) -> None:
    """Never comes to the end of its head."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def streams(call: Call, writer: asyncio.StreamWriter) -> None:
    """Answers with a body that has no end."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def floods(call: Call, writer: asyncio.StreamWriter) -> None:
    """Answers with a head that has no end, as fast as it can."""
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        writer.write(b"y" * 65536)
        await writer.drain()


async def speaks_no_http(call: Call, writer: asyncio.StreamWriter) -> None:
    """Answers with something else."""
    writer.write(b"-ERR unknown command\r\n\r\n")
    await writer.drain()


async def closes(call: Call, writer: asyncio.StreamWriter) -> None:
    """Ends the connection in place of an answer."""


def self_signed(folder: Path) -> ssl.SSLContext:
    """TLS with a certificate that nobody trusts."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
