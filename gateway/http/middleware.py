"""Middleware around FastAPI: request id and access log, HEAD, authentication."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.access_log import AccessLog
from gateway.http.asgi_io import PIECE_BYTES, in_pieces
from gateway.http.auth import Authenticator
from gateway.http.error_response import ERROR_CODE, error_response, to_flotilla_error
from gateway.http.route_scopes import PUBLIC_PATHS, check_route
from shared.job.errors import FlotillaError
from shared.platform import logs
from shared.platform.metrics.gateway import GatewayMetrics

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9_.:-]{1,128}$")

IS_HEAD = "flotilla.head"
"""The key of a scope that is true if the request is HEAD: its answer's body is not to be made."""


def sent_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The client's own `x-request-id`; None if there is none or it has other characters."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return None


def new_request_id() -> bytes:
    """For a request that does not become a job; the id of one that does is the job's."""
    return b"req_" + secrets.token_hex(12).encode()


class RequestId:
    """Adds `x-request-id` to every answer, writes the access log, answers unhandled errors."""

    def __init__(self, app: ASGIApp, access: AccessLog, metrics: GatewayMetrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        logs.clear_contextvars()  # a pipelined request starts in the context of the one before it
        logs.bind_contextvars(request_id=request_id.decode("ascii"))
        identity = (b"x-request-id", request_id)
        began, status, job_id = time.monotonic(), 0, b"-"
        state = scope.setdefault("state", {})

        async def send_with_id(message: Message) -> None:
            nonlocal status, job_id
            if message["type"] == "http.response.start":
                status = message["status"]
                job_id = dict(message["headers"]).get(b"x-flotilla-job-id", job_id)
                message["headers"] = [*message["headers"], identity]
            elif len(message.get("body", b"")) > PIECE_BYTES:
                to_send, more = len(message["body"]), message.get("more_body", False)
                for piece in in_pieces(message["body"]):
                    to_send -= len(piece)
                    await send({**message, "body": piece, "more_body": more or to_send > 0})
                return
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            failure = to_flotilla_error(error)
            response = error_response(failure, self._metrics, scope)
            if not status:  # else the answer has begun: the server closes the connection
                await response(scope, receive, send_with_id)
        finally:
            self._access.record(
                scope,
                status or 500,
                began,
                request_id,
                tenant=state.get("tenant", "-"),
                job_id=job_id.decode("ascii"),
                error=state.get(ERROR_CODE, ""),
            )


class Head:
    """Answers HEAD as GET. The server leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        # Not for streams: the answer to HEAD would take as long as the stream.
        if scope.get("method") == "HEAD" and not scope["path"].endswith(("/events", "/stream")):
            scope = {**scope, "method": "GET", IS_HEAD: True}
        await self._app(scope, receive, send)


class Authentication:
    """Puts the key and its tenant into the request's state, or answers 401 or 403."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, metrics: GatewayMetrics) -> None:
        self._app = app
        self._authenticator = authenticator
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":  # no route takes any, and this check is for HTTP only
            await send({"type": "websocket.close", "code": 1008})
            return
        # The path of the scope: neither the Host header nor a root path can change it.
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            try:
                key = self._authenticator.key(scope)
                check_route(key, scope["method"], scope["path"])
            except FlotillaError as error:
                await error_response(error, self._metrics, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)
