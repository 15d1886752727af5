"""The gateway around its routes: request ids, authentication, unhandled errors."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.known_keys import KnownKeys
from gateway.http.middleware import Authentication, RequestId
from gateway.http.route_scopes import PUBLIC_PATHS
from shared.platform.metrics.gateway import GatewayMetrics
from tests.harness.settings import Settings

KEY = "sk-1"
METRICS = GatewayMetrics(CollectorRegistry())


Headers = list[tuple[bytes, bytes]]


@cache
def gateway() -> ASGIApp:
    """The whole application, with one key; nothing runs behind it."""
    return create_app(Settings(access_log=False, api_keys=(SecretStr(f"alice:{KEY}"),)))


async def ask(
    app: ASGIApp, path: str = "/jobs", headers: Headers | None = None, **scope: object
) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a GET."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    request = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers or [],
        "server": ("gateway", 80),
        "client": ("127.0.0.1", 1),
    }
    await app(request | scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], sent[0]["headers"], body


def request_ids(headers: Headers) -> list[bytes]:
    return [value for name, value in headers if name == b"x-request-id"]


@pytest.mark.parametrize("sent", [b"a", b"req-1_2.3:4", b"X" * 128])
async def test_a_valid_request_id_is_returned(sent: bytes) -> None:
    _, headers, _ = await ask(gateway(), "/", [(b"x-request-id", sent)])
    assert request_ids(headers) == [sent]


@pytest.mark.parametrize(
    "sent", [b"", b" ", b"a b", b"X" * 129, b"a\r\nset-cookie: x", b"<script>", b"\xff", b"a;b"]
)
async def test_an_invalid_request_id_is_replaced(sent: bytes) -> None:
    _, headers, _ = await ask(gateway(), "/", [(b"x-request-id", sent)])
    (made,) = request_ids(headers)
    assert re.fullmatch(rb"req_[0-9a-f]{24}", made)


async def test_only_probes_the_api_description_and_the_page_need_no_key() -> None:
    assert {path for path in PUBLIC_PATHS if not path.startswith(("/docs", "/ui/"))} == {
        "/",
        "/healthz",
        "/readyz",
        "/health",
        "/ping",
        "/openapi.json",
    }
    for path in PUBLIC_PATHS - NEED_A_FLEET:
        assert (await ask(gateway(), path))[0] == 200, path


NEED_A_FLEET = {"/healthz", "/readyz", "/health", "/ping"}
"""Probes, which tests/api asks without a key."""


TRICKS = [
    "//",
    "/ui",
    "/ui/",
    "/ui/other.js",
    "/ui/../jobs",
    "/ui/..%2fjobs",
    "//jobs",
    "/jobs",
    "/ping/x",
    "/version",
    "//healthz",
    "/healthz/../jobs",
    "/healthz/..%2fjobs",
    "/healthz;/jobs",
    "/healthz?/jobs",
    "/healthz#/jobs",
    "/healthz%00/jobs",
    "/healthz\x00",
    "/healthz\n",
    "/HEALTHZ",
    "/readyz/./jobs",
    "/metrics",
    "/docs/other",
    "/docs/../jobs",
    "",
]


OF_PROXIES: list[Headers] = [
    [(b"host", b"gateway/healthz?x=")],
    [(b"host", b"x/healthz")],
    [(b"x-original-url", b"/healthz")],
    [(b"x-rewrite-url", b"/healthz")],
    [(b"x-forwarded-prefix", b"/healthz")],
    [(b"x-forwarded-for", b"127.0.0.1")],
    [(b"authorization", b"Bearer sk-1"), (b"authorization", b"Bearer sk-1")],
]


async def test_whatever_resembles_a_public_path_is_401_in_openais_shape() -> None:
    asked: list[tuple[str, Headers]] = [(path, []) for path in TRICKS]
    asked += [("/jobs", headers) for headers in OF_PROXIES]
    for path, more in asked:
        status, headers, body = await ask(gateway(), path, [(b"x-request-id", b"mine"), *more])
        assert status == 401, (path, more)
        assert request_ids(headers) == [b"mine"]
        assert dict(headers)[b"www-authenticate"] == b"Bearer"
        assert dict(headers)[b"content-type"] == b"application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert (await ask(gateway(), "/healthz/jobs", root_path="/healthz"))[0] == 401


async def test_a_websocket_is_refused() -> None:
    sent = []

    async def send(message: Message) -> None:
        sent.append(message["type"])

    async def inside(*_: object) -> None:
        pytest.fail("it got in")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    gate = Authentication(inside, Authenticator(KnownKeys({"00": "y"})), METRICS)
    await gate({"type": "websocket", "path": "/jobs", "headers": []}, receive, send)
    assert sent == ["websocket.close"]


def test_probes_are_logged_with_level_debug_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def write_line(level: str) -> None:
        access = AccessLog(True, level)
        access.record({"path": "/healthz", "method": "GET"}, 200, 0.0, b"mine")
        access.write()

    asyncio.run(write_line("info"))
    assert capsys.readouterr().err == ""
    asyncio.run(write_line("debug"))
    assert "GET /healthz 200 " in capsys.readouterr().err


async def test_an_unhandled_error_is_answered_in_openais_shape_and_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("secret")

    access = AccessLog(True, "info", as_json=True)
    app = RequestId(fails, access, METRICS)
    status, headers, body = await ask(app, "/jobs", [(b"x-request-id", b"mine")])
    assert status == 500
    assert request_ids(headers) == [b"mine"]
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", None, None)
    assert "secret" not in error["message"]
    access.write()
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["status"], line["error"]) == (500, "server_error")
