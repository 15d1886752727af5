"""Middleware: request ids, the access log, authentication, HEAD, unhandled errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from typing import Any
from unittest.mock import ANY

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.known_keys import KnownKeys
from gateway.http.middleware import Authentication, Head, RequestId
from gateway.http.route_scopes import PUBLIC_PATHS
from shared.platform.metrics.gateway import GatewayMetrics
from tests.harness.settings import Settings
from tests.harness.waiting import eventually

KEY = "sk-1"
TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
METRICS = GatewayMetrics(CollectorRegistry())


def authentication(app: ASGIApp, tenants: dict[str, str]) -> Authentication:
    return Authentication(app, Authenticator(KnownKeys(tenants), 20, METRICS), METRICS)


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


async def test_a_request_without_an_id_gets_a_unique_one() -> None:
    made = {request_ids((await ask(request_id(Inside())))[1])[0] for _ in range(50)}
    assert len(made) == 50


async def test_other_protocols_than_http_pass() -> None:
    seen = []

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    for layer in (request_id(inside), authentication(inside, TENANTS)):
        await layer({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"] * 2


async def test_a_valid_key_sets_the_tenant() -> None:
    inside = Inside()
    headers = [(b"authorization", b"Bearer sk-1")]
    assert (await ask(authentication(inside, TENANTS), headers=headers))[0] == 200
    assert inside.tenants == ["alice"]


def test_only_probes_the_api_description_and_the_page_are_public() -> None:
    assert {path for path in PUBLIC_PATHS if not path.startswith(("/docs", "/ui/"))} == {
        "/",
        "/healthz",
        "/readyz",
        "/health",
        "/ping",
        "/openapi.json",
    }


async def test_without_configured_keys_all_requests_pass() -> None:
    inside = Inside()
    assert (await ask(authentication(inside, {})))[0] == 200
    assert inside.tenants == ["default"]


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
async def test_public_paths_need_no_key(path: str) -> None:
    inside = Inside()
    assert (await ask(authentication(inside, TENANTS), path))[0] == 200
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


@pytest.mark.parametrize("path", TRICKS)
async def test_paths_that_resemble_public_ones_need_a_key(path: str) -> None:
    inside = Inside()
    assert (await ask(authentication(inside, TENANTS), path))[0] == 401
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


@pytest.mark.parametrize("path", [*TRICKS, "/v1/models", "/v1/chat/completions"])
async def test_a_401_of_the_whole_gateway_has_openais_shape_and_an_id(path: str) -> None:
    app = create_app(Settings(api_keys=(SecretStr(f"alice:{KEY}"),)))
    status, headers, body = await ask(app, path, [(b"x-request-id", b"mine")])
    assert status == 401
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

    gate = authentication(inside, {"x": "y"})
    await gate({"type": "websocket", "path": "/jobs", "headers": []}, receive, send)
    assert sent == ["websocket.close"]


async def test_a_refused_key_is_counted() -> None:
    count = METRICS.refused.labels("invalid_api_key")._value
    before = count.get()
    assert (await ask(authentication(Inside(), TENANTS)))[0] == 401
    assert count.get() == before + 1


async def test_head_is_get_without_a_body() -> None:
    methods = []

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        methods.append(scope["method"])
        await Inside()(scope, receive, send)

    for path in ("/healthz", "/v1/models", "/jobs/job_1/events"):
        await ask(Head(inside), path, method="HEAD")
    await ask(Head(inside), method="POST")
    assert methods == ["GET", "GET", "HEAD", "POST"]


async def test_every_request_has_a_line_in_the_access_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = create_app(Settings(api_keys=(SecretStr(f"alice:{KEY}"),), log_format="json"))
    path = "/v1/models/a b"
    await ask(
        app,
        path,
        [(b"x-request-id", b"mine"), (b"authorization", b"Bearer wrong-key")],
        raw_path=b"/v1/models/a%20b",
        query_string=b"key=secret",
    )
    await ask(app, "/v1/chat/completions", [(b"x-request-id", b"other")], method="POST")
    await ask(app, "/healthz")  # not logged: probes would be most of the lines
    await ask(app, "/a\nb", raw_path=b"/a\nb\xff?key=secret")
    written: list[str] = []

    async def all_of_them() -> bool:
        written.extend(capsys.readouterr().err.splitlines())
        return len(written) >= 3

    await eventually(all_of_them, "the lines are written")
    first, second, third = map(json.loads, written)
    assert re.fullmatch(TIMESTAMP, first.pop("timestamp"))
    assert 0 <= first.pop("seconds") < 60
    assert first == {
        "level": "info",
        "logger": "flotilla.access",
        "message": "GET /v1/models/a%20b 401",
        "method": "GET",
        "path": "/v1/models/a%20b",
        "status": 401,
        "request_id": "mine",
        "tenant": "-",
        "error": "invalid_api_key",
    }
    assert (second["request_id"], second["error"]) == ("other", "invalid_api_key")
    assert third["message"] == r"GET /a\nb\xff 401"


def test_a_line_of_the_access_log_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    async def write_line() -> None:
        access = AccessLog(True, "info", as_json=False)
        scope = {"path": "/jobs", "method": "POST"}
        access.record(scope, 202, time.monotonic(), b"mine", tenant="alice", job_id="job_1")
        access.write()

    asyncio.run(write_line())
    line = capsys.readouterr().err
    assert re.fullmatch(
        TIMESTAMP + r" \[info     \] POST /jobs 202 \[flotilla\.access\] seconds=0\.\d{3} "
        r"request_id=mine job_id=job_1 tenant=alice\n",
        line,
    ), line


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


async def test_an_error_after_the_answer_has_begun_sends_nothing_more() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    assert await ask(request_id(fails)) == (200, [(b"x-request-id", ANY)], b"")


async def test_the_access_log_has_the_error_of_a_route_of_fastapi(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = create_app(Settings(log_format="json"))
    assert (await ask(app, "/no/such/route"))[0] == 404
    assert (await ask(app, "/v1/fine_tuning/jobs"))[0] == 501
    assert (await ask(app, "/docs", method="DELETE"))[0] == 405
    written: list[str] = []

    async def all_of_them() -> bool:
        written.extend(capsys.readouterr().err.splitlines())
        return len(written) >= 3

    await eventually(all_of_them, "the lines are written")
    errors = [json.loads(line)["error"] for line in written]
    assert errors == ["unknown_route", "not_supported", "method_not_allowed"]
