"""Every request of a connection is notified of its end: with TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from gateway.http.asgi_io import chunk_writer, on_disconnect
from gateway.http.connection import Connection
from gateway.http.connection_limits import Connections
from shared.platform.metrics.gateway import GatewayMetrics
from tests.harness.settings import Settings
from tests.harness.waiting import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


class Endless:
    """An application whose answers have no end; it counts the clients that left."""

    def __init__(self) -> None:
        self.begun = self.left = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        await receive()
        gone = asyncio.Event()
        on_disconnect(receive, gone.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = chunk_writer(send)
        while not gone.is_set():
            body.write(b"more")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await gone.wait()
        self.left += 1
        assert not body.write(b"secret")


@contextlib.asynccontextmanager
async def served(app: Endless, tls: tuple[str, str] | None) -> AsyncIterator[int]:
    options: dict[str, Any] = {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}
    connections = Connections(Settings(), GatewayMetrics(CollectorRegistry()), 1000)
    protocol: Any = partial(Connection, connections)
    config = uvicorn.Config(
        app, port=0, http=protocol, ws="none", lifespan="off", log_config=None, **options
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())

    async def started() -> bool:
        return server.started

    await eventually(started, "the server listens")
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    folder: Path = tmp_path_factory.mktemp("tls")
    pem = serialization.Encoding.PEM
    (folder / "cert").write_bytes(made.public_bytes(pem))
    (folder / "key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "cert"), str(folder / "key")


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("behind", [0, 1, 3, 9])
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_every_request_of_a_connection_is_notified_of_its_end(
    request: pytest.FixtureRequest,
    runner: Any,
    behind: int,
    with_tls: bool,
) -> None:
    certificate = request.getfixturevalue("certificate") if with_tls else None

    async def run() -> None:
        app = Endless()
        async with served(app, certificate) as port:
            trust = ssl.create_default_context(cafile=certificate[0]) if certificate else None
            reader, client = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            try:
                client.write(REQUEST * (1 + behind))
                await reader.readuntil(b"more")
            finally:
                client.transport.abort()

            async def notified() -> bool:
                return app.left == app.begun == 1

            await eventually(notified, "the request that is being answered has been notified")

    runner(run())
