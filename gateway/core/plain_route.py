"""A route whose answer may be a stream of tokens: plain ASGI, in front of FastAPI."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.error_response import error_response, to_flotilla_error
from gateway.http.middleware import new_request_id, sent_request_id
from gateway.http.route_scopes import check_scope, scopes_of
from shared.job.errors import FlotillaError
from shared.platform.metrics.gateway import GatewayMetrics

Begin = Callable[[Gateway, Incoming], Awaitable[Answer]]
"""Makes the answer to a request. Raises the error that the request is answered with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoute:
    """A row of the table of applications (`gateway/front_door.py`)."""

    method: str
    path: str
    """With parameters as FastAPI writes them; a row without any is found by its path alone."""
    begin: Begin
    description: Mapping[str, Any]
    """The operation in the API's description."""
    applies: Callable[[Scope], bool] | None = None
    """For which requests of this method and path it is, if not for all."""
    _matches: Callable[[str], Any] = field(init=False)

    def __post_init__(self) -> None:
        """Compile the path as the router of FastAPI does."""
        object.__setattr__(self, "_matches", compile_path(self.path)[0].match)

    def is_for(self, scope: Scope) -> bool:
        """Whether a request is for this route."""
        return (
            scope["method"] == self.method
            and self._matches(scope["path"]) is not None
            and (self.applies is None or self.applies(scope))
        )


class PlainApplications:
    """The objects that all plain routes share; made with the gateway's application."""

    __slots__ = ("access", "authenticator", "gateway", "metrics")

    def __init__(
        self, authenticator: Authenticator, metrics: GatewayMetrics, access: AccessLog
    ) -> None:
        self.gateway: Gateway
        """Set when the process starts."""
        self.authenticator = authenticator
        self.metrics = metrics
        self.access = access

    async def refuse(
        self, error: FlotillaError, scope: Scope, receive: Receive, send: Send, received: float
    ) -> None:
        """Answer with the error, and write it into the access log. `received`: as in Incoming."""
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        refusal = error_response(error, self.metrics, scope, (b"x-request-id", request_id))
        await refusal(scope, receive, send)
        code = error.code or error.type
        self.access.record(scope, error.status, received, request_id, error=code)


class PlainApplication:
    """The ASGI application of one plain route."""

    __slots__ = ("_begin", "_scopes", "_shared")

    def __init__(self, route: PlainRoute, shared: PlainApplications) -> None:
        self._begin = route.begin
        self._scopes = scopes_of(route.method, route.path)
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        shared, received = self._shared, time.monotonic()
        request_id = sent_request_id(scope["headers"])
        try:
            key = shared.authenticator.key(scope)
            check_scope(key, *self._scopes)
            incoming = Incoming(scope, receive, key, received, request_id)
            answer = await self._begin(shared.gateway, incoming)
        except Exception as error:
            await shared.refuse(to_flotilla_error(error), scope, receive, send, received)
            return
        try:
            await answer(scope, receive, send)
        finally:
            shared.access.record(
                scope,
                answer.status,
                received,
                request_id or answer.job_id.encode(),
                tenant=answer.tenant,
                job_id=answer.job_id,
                error=answer.error,
            )
