"""Errors as HTTP answers: one place, always OpenAI's shape."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.http.not_supported import not_supported
from shared.api.errors import (
    BadRequest,
    FlotillaError,
    MethodNotAllowed,
    NotFound,
    RedisUnavailable,
)
from shared.platform.metrics import GatewayMetrics
from shared.platform.redis_client import RedisError

log = logging.getLogger("flotilla.gateway")


def error_response(
    error: FlotillaError, metrics: GatewayMetrics, *headers: tuple[bytes, bytes]
) -> Response:
    """The answer that tells a client of an error of ours; it is counted."""
    metrics.refused.labels(error.code or error.type).inc()
    response = Response(error.to_openai(), error.status, media_type="application/json")
    response.raw_headers += [*error.headers(), *headers]
    return response


def to_flotilla_error(error: Exception) -> FlotillaError:
    """The error that a client is told of; what is not its business is logged."""
    if isinstance(error, FlotillaError):
        return error
    if isinstance(error, RedisError | OSError):
        log.warning("Redis is not available: %s", error)
        return RedisUnavailable("The queue can't be reached now; try again.")
    log.error("unhandled error", exc_info=error)
    return FlotillaError("Something went wrong on our side.")


def install(app: FastAPI, metrics: GatewayMetrics) -> None:
    """Render every exception that leaves a route."""

    def answer(error: FlotillaError) -> Response:
        return error_response(error, metrics)

    async def ours(_: Request, error: Exception) -> Response:
        return answer(to_flotilla_error(error))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            if missing := not_supported(request.url.path):
                return answer(missing)
            return answer(NotFound(f"There is no {request.method} {request.url.path[:200]} here."))
        if error.status_code == 405:
            response = answer(MethodNotAllowed(f"{request.method} is not allowed here."))
            response.headers.update(error.headers or {})
            return response
        return answer(BadRequest(str(error.detail)))

    async def validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return answer(BadRequest(f"{place}: {first['msg']}", place or None))

    app.add_exception_handler(FlotillaError, ours)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(RedisError, ours)
    app.add_exception_handler(OSError, ours)
    app.add_exception_handler(Exception, ours)
