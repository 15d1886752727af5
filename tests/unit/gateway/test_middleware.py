"""Middleware: request ids, authentication, unhandled errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

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


def authentication(app: ASGIApp, tenants: dict[str, str]) -> Authentication:
    return Authentication(app, Authenticator(KnownKeys(tenants)), METRICS)


def request_id(app: ASGIApp) -> RequestId:
    return RequestId(app, AccessLog(True, "info"), METRICS)


TENANTS = {hashlib.sha256(KEY.encode()).hexdigest(): "alice"}
Headers = list[tuple[bytes, bytes]]


class Inside:
    """The application behind the middleware; records the tenant of each request."""

    def __init__(self) -> None:
        self.tenants: list[str | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.tenants.append(scope.get("state", {}).get("tenant"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})


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
    _, headers, _ = await ask(request_id(Inside()), headers=[(b"x-request-id", sent)])
    assert request_ids(headers) == [sent]


@pytest.mark.parametrize(
    "sent", [b"", b" ", b"a b", b"X" * 129, b"a\r\nset-cookie: x", b"<script>", b"\xff", b"a;b"]
)
async def test_an_invalid_request_id_is_replaced(sent: bytes) -> None:
    _, headers, _ = await ask(request_id(Inside()), headers=[(b"x-request-id", sent)])
    (made,) = request_ids(headers)
    assert re.fullmatch(rb"req_[0-9a-f]{24}", made)


def test_only_probes_the_api_description_and_the_page_are_public() -> None:
    assert {path for path in PUBLIC_PATHS if not path.startswith(("/docs", "/ui/"))} == {
        "/",
        "/healthz",
        "/readyz",
        "/health",
        "/ping",
        "/openapi.json",
    }


async def test_public_paths_need_no_key() -> None:
    for path in sorted(PUBLIC_PATHS):
        inside = Inside()
        assert (await ask(authentication(inside, TENANTS), path))[0] == 200, path
        assert inside.tenants == [None]


TRICKS = [
    "//",
    "/ui",
    "/ui/",
    "/ui/other.js",
    "/ui/../jobs",
    "/ui/..%2fjobs",
    "/ui/main.js/",
    "//jobs",
    "/jobs",
    "/healthz/",
    "/health/",
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
    "/docs/",
    "/docs/other",
    "/docs/../jobs",
    "/openapi.json/",
    "",
]


async def test_paths_that_resemble_public_ones_need_a_key() -> None:
    for path in TRICKS:
        inside = Inside()
        assert (await ask(authentication(inside, TENANTS), path))[0] == 401, path
        assert inside.tenants == []


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"gateway/healthz?x=")],
        [(b"host", b"x/healthz")],
        [(b"x-original-url", b"/healthz")],
        [(b"x-rewrite-url", b"/healthz")],
        [(b"x-forwarded-prefix", b"/healthz")],
        [(b"x-forwarded-for", b"127.0.0.1")],
        [(b"authorization", b"Bearer sk-1"), (b"authorization", b"Bearer sk-1")],
    ],
)
async def test_no_other_header_replaces_the_key(headers: Headers) -> None:
    inside = Inside()
    assert (await ask(authentication(inside, TENANTS), headers=headers))[0] == 401
    assert inside.tenants == []


async def test_a_root_path_makes_no_path_public() -> None:
    inside = Inside()
    app = authentication(inside, TENANTS)
    assert (await ask(app, "/healthz/jobs", root_path="/healthz"))[0] == 401
    assert inside.tenants == []


async def test_a_401_of_the_whole_gateway_has_openais_shape_and_an_id() -> None:
    app = create_app(Settings(api_keys=(SecretStr(f"alice:{KEY}"),)))
    # A slash at the end is left out.
    public = {"/healthz/", "/health/", "/ui/main.js/", "/docs/", "/openapi.json/"}
    for path in [*TRICKS, "/v1/models", "/v1/chat/completions"]:
        if path in public:
            continue
        status, headers, body = await ask(app, path, [(b"x-request-id", b"mine")])
        assert status == 401, path
        assert request_ids(headers) == [b"mine"]
        assert dict(headers)[b"www-authenticate"] == b"Bearer"
        assert dict(headers)[b"content-type"] == b"application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")


async def test_a_websocket_is_refused() -> None:
    sent = []

    async def send(message: Message) -> None:
        sent.append(message["type"])

    async def inside(*_: object) -> None:
        pytest.fail("it got in")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    gate = authentication(inside, {"00": "y"})
    await gate({"type": "websocket", "path": "/jobs", "headers": []}, receive, send)
    assert sent == ["websocket.close"]


@pytest.mark.parametrize(
    "settings", [{"access_log": False}, {"log_level": "warning"}, {"log_level": "error"}]
)
async def test_the_access_log_can_be_turned_off(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    values = Settings(**settings, api_keys=(SecretStr(KEY),))
    access = AccessLog(values.access_log, values.log_level)
    access.record({"path": "/jobs", "method": "GET"}, 200, 0.0, b"mine")
    access.write()
    assert capsys.readouterr().err == ""


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
