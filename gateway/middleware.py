"""What every request passes that FastAPI answers: it gets an id, and its key is looked at."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import Authenticator
from gateway.errors import error_response
from shared.errors import FlotillaError
from shared.metrics import GatewayMetrics

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9_.:-]{1,128}$")
# Probes carry no key. Everything else needs one where keys are configured, whatever routes come.
_OPEN_PATHS = frozenset({"/healthz", "/readyz"})


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
    """Every answer carries `x-request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        identity = (b"x-request-id", request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], identity]
            await send(message)

        await self._app(scope, receive, send_with_id)


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
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            try:
                tenant = await self._authenticator.tenant(scope)
                scope.setdefault("state", {})["tenant"] = tenant
            except FlotillaError as error:
                await error_response(error, self._metrics)(scope, receive, send)
                return
        await self._app(scope, receive, send)
