"""What every request passes that FastAPI answers: it gets an id, its key is looked at, and one line
in the access log tells of it."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.errors import error_response
from shared.api.errors import FlotillaError
from shared.platform import logs
from shared.platform.metrics import GatewayMetrics

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9_.:-]{1,128}$")
_DOCS_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
PUBLIC_PATHS = frozenset(
    {"/healthz", "/readyz", "/health", "/ping"}  # probes carry no key
    | {"/openapi.json", "/docs", *(f"/docs/{name}" for name in _DOCS_FILES)}
)
"""Paths that need no key. Every other path needs one if keys are configured, new routes too."""


def sent_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The id that a client gave its request, if it is a sound one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return None


def new_request_id() -> bytes:
    """For a request that did not become a job; else the job's id is the request's."""
    return b"req_" + secrets.token_hex(12).encode()


class RequestId:
    """Every answer carries `x-request-id`; the access log has it, too."""

    def __init__(self, app: ASGIApp, access: AccessLog) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        logs.clear_contextvars()  # a pipelined request starts in the context of the one before it
        logs.bind_contextvars(request_id=request_id.decode("ascii"))
        identity = (b"x-request-id", request_id)
        began, status, job_id = time.monotonic(), 500, b"-"

        async def send_with_id(message: Message) -> None:
            nonlocal status, job_id
            if message["type"] == "http.response.start":
                status = message["status"]
                job_id = dict(message["headers"]).get(b"x-flotilla-job-id", job_id)
                message["headers"] = [*message["headers"], identity]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            tenant = scope.get("state", {}).get("tenant", "-")
            job = job_id.decode("ascii")
            self._access.note(scope, status, began, request_id, tenant=tenant, job_id=job)


class Head:
    """HEAD is answered as GET is, without the body, which the server leaves out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An event stream has no end that somebody who asks for no body should wait for.
        if scope.get("method") == "HEAD" and not scope["path"].endswith("/events"):
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class Authentication:
    """Puts the tenant into the request's state, or answers 401 (or 429, see auth.py)."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, metrics: GatewayMetrics) -> None:
        self._app = app
        self._authenticator = authenticator
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there is none here, and none may slip past the key
            await send({"type": "websocket.close", "code": 1008})
            return
        # The raw path: what the Host header or a root path make of a URL must not open a door.
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            try:
                tenant = await self._authenticator.tenant(scope)
                scope.setdefault("state", {})["tenant"] = tenant
            except FlotillaError as error:
                await error_response(error, self._metrics)(scope, receive, send)
                return
        await self._app(scope, receive, send)
