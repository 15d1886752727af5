"""Answers 400 where vLLM's own code fails because of what a request contains.

vLLM takes parts of a body as they are and reads fields of what may be a text, or walks through it
until Python's stack ends. Its own answer is 500. Before a request has reached the engine, such an
exception has one cause: the request.

Errors of FastAPI itself, such as those for routes that vLLM does not have for this kind of model,
get OpenAI's shape, too.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from worker.engines.interface import JOURNAL, NO_ROUTE

log = logging.getLogger("flotilla.engine")

CAUSED_BY_INPUT = (AttributeError, LookupError, RecursionError, AssertionError, ArithmeticError)
_MAX_CHARS = 300


def install(app: Any) -> None:
    """Add the handlers to vLLM's application, before its first request."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse

    from worker.engines.vllm.error_response import create_error_response

    async def answer(request: Any, error: Exception) -> JSONResponse:
        # The journal of a job is its output buffer; others do not count.
        if getattr(JOURNAL.get(), "reached_engine", True):
            raise error
        log.warning("vLLM can't handle a request, which is answered with 400", exc_info=error)
        text = f"This request can't be processed: {type(error).__name__}: {error}"
        refusal = create_error_response(ValueError(text[:_MAX_CHARS]))
        return JSONResponse(refusal.model_dump(), status_code=refusal.error.code)

    async def in_openais_shape(request: Any, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        text = str(error.detail)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            text = f"{NO_ROUTE} {request.method} {request.url.path}: {text}"
        refusal = create_error_response(text, f"{status.phrase.replace(' ', '')}Error", status)
        return JSONResponse(refusal.model_dump(), status.value, error.headers)

    app.exception_handler(HTTPException)(in_openais_shape)
    for kind in CAUSED_BY_INPUT:
        app.exception_handler(kind)(answer)
    if app.middleware_stack is not None:  # made by a library that adds routes of its own
        app.middleware_stack = app.build_middleware_stack()
