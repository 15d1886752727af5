"""Turns errors into HTTP answers, in OpenAI's shape or Anthropic's."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from gateway.http.wrong_fields import wrong_field
from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_body, error_style
from shared.job.errors import (
    BadRequest,
    FlotillaError,
    MethodNotAllowed,
    RedisUnavailable,
    UnknownRoute,
)
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.errors import StoreError

log = logging.getLogger("flotilla.gateway")
_warn = RareWarning(log)

ERROR_CODE = "error_code"
"""The key of a request's `state` that holds the code of the error it was answered with."""


def error_response(
    error: FlotillaError, metrics: GatewayMetrics, scope: Scope, *headers: tuple[bytes, bytes]
) -> Response:
    """The answer to the request `scope` that failed with `error`.

    Counts it, and notes its code in the request's state for the access log.
    """
    code = error.code or error.type
    metrics.refused.labels(code).inc()
    scope.setdefault("state", {})[ERROR_CODE] = code
    style = error_style(scope.get("path", "").replace("//", "/"))
    response = Response(error_body(error, style), error.status, media_type="application/json")
    response.raw_headers += [*error.headers(), *headers]
    if style is ErrorStyle.ANTHROPIC:  # the name that Anthropic's SDK reads
        ids = [value for name, value in headers if name == b"x-request-id"]
        response.raw_headers += [(b"request-id", value) for value in ids]
    return response


def to_flotilla_error(error: Exception) -> FlotillaError:
    """The error that the client gets for any exception; its details are logged, not sent."""
    if isinstance(error, FlotillaError):
        return error
    if isinstance(error, StoreError | OSError):
        _warn("Redis can't be reached or refused a command: %s", error)
        return RedisUnavailable("The queue can't be reached now; try again.")
    log.error("unhandled error", exc_info=error)
    return FlotillaError(
        "The gateway failed while it handled this request; its log has details under the "
        "x-request-id of this answer."
    )


def install(app: FastAPI, metrics: GatewayMetrics) -> None:
    """Answer these exceptions of routes; `middleware.RequestId` answers all others."""

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(to_flotilla_error(error), metrics, request.scope)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = error_response(_of_http_exception(request, error), metrics, request.scope)
        if response.status_code == 405:
            response.headers.update(error.headers or {})
        return response

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(wrong_field(error), metrics, request.scope)

    app.add_exception_handler(FlotillaError, on_error)
    app.add_exception_handler(StoreError, on_error)
    app.add_exception_handler(OSError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def _of_http_exception(request: Request, error: HTTPException) -> FlotillaError:
    method, path = request.method, request.scope["path"]
    if error.status_code == 404 and "//" in path:
        return UnknownRoute(
            f"This server has no route {method} {path[:200]}, with `//`: does the base URL of your "
            "client end in `/`? Leave that out."
        )
    if error.status_code == 404:
        return UnknownRoute(
            f"This server has no route {method} {path[:200]}; /docs shows those that it has."
        )
    if error.status_code == 405:
        return MethodNotAllowed(f"{path[:200]} does not support {method}.")
    return BadRequest(str(error.detail))
