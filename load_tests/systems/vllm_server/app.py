"""vLLM 0.32's FastAPI application: middleware, routes and exception handlers of each request.

After `entrypoints/launchers/app.py`, `serve/middleware/register.py`, `serve/instrumentator/
metrics.py` and `serve/exception_handling`: what `vllm serve` has without any option.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY, make_asgi_app
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from load_tests.systems.engine import MODEL
from load_tests.systems.vllm_server.models import OpenAIBaseModel

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_NOT_INSTRUMENTED = ["/metrics", "/health", "/load", "/ping", "/version", "/server_info"]
_UNUSED = (
    ("GET", "/load"),
    ("GET", "/version"),
    ("GET", "/kv_event_sources"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/systemone"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("POST", "/invocations"),
)
"""Routes that are tried before the chat completion, besides health, metrics and models."""

_HANDLED = (
    HTTPException,
    RequestValidationError,
    ValueError,
    TypeError,
    OverflowError,
    NotImplementedError,
    Exception,
)


class ErrorInfo(OpenAIBaseModel):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(OpenAIBaseModel):
    """The body of an error response."""

    error: ErrorInfo


def build_app(chat: APIRouter, lifespan: Lifespan) -> FastAPI:
    """Make the application.

    Its routes are tried in order, twice: for the metrics' label and for the handler.
    """
    app = FastAPI(lifespan=lifespan)
    for method, path in _UNUSED:
        app.add_api_route(path, _unused, methods=[method])
    app.add_api_route("/health", _health)
    app.add_api_route("/v1/models", _models)
    metrics = Instrumentator(excluded_handlers=_NOT_INSTRUMENTED, registry=REGISTRY)
    metrics.instrument(app).expose(app)
    app.routes.append(Mount("/metrics", make_asgi_app(registry=REGISTRY)))
    app.include_router(chat)
    for kind in _HANDLED:
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[],
        allow_credentials=False,
        allow_methods=["*"],
        allow_headers=["*"],
    )
    app.add_middleware(ScalingMiddleware)
    return app


class ScalingMiddleware:
    """vLLM's elastic expert parallelism: answers 503 while the model scales, here never."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on."""
        if scope["type"] == "http" and _scaling():
            return JSONResponse({"error": "The model is scaling."}, 503)(scope, receive, send)
        return self._app(scope, receive, send)


def _scaling() -> bool:
    return False


async def _health() -> Response:
    return Response()


async def _models() -> dict[str, Any]:
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "simulated"}]}


async def _unused() -> Response:
    return Response(status_code=HTTPStatus.NOT_IMPLEMENTED)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
    if isinstance(error, HTTPException):
        status, message = HTTPStatus(error.status_code), error.detail
    elif isinstance(error, RequestValidationError):
        status, message = HTTPStatus.BAD_REQUEST, str(error.errors())
    elif isinstance(error, ValueError | TypeError | OverflowError):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, NotImplementedError):
        status = HTTPStatus.NOT_IMPLEMENTED
    answer = ErrorResponse(error=ErrorInfo(message=message, type=status.phrase, code=status))
    return JSONResponse(answer.model_dump(), status)
