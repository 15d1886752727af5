"""The shapes of errors: OpenAI's, and Anthropic's for everything under `/v1/messages`."""

from __future__ import annotations

import json
from typing import Any

from shared.api.endpoint import ErrorStyle
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import FlotillaError

_STYLES = {row.path: row.errors for row in ENDPOINTS.values()}
_ANTHROPIC_PATHS = [path for path, style in _STYLES.items() if style is ErrorStyle.ANTHROPIC]
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; other ones below 500 are `invalid_request_error`, above `api_error`."""


def error_style(path: str) -> ErrorStyle:
    """The shape of errors on this path: that of the row of the table that it is, or is below."""
    if path in _STYLES:
        return _STYLES[path]
    for known in _ANTHROPIC_PATHS:
        if path.startswith(known) and path[len(known) : len(known) + 1] in ("", "/"):
            return ErrorStyle.ANTHROPIC
    return ErrorStyle.OPENAI


def error_body(failure: FlotillaError, style: ErrorStyle) -> bytes:
    """The body of the answer to a request that failed with this error."""
    if style is ErrorStyle.ANTHROPIC:
        return _anthropic(failure.status, str(failure), failure.code)
    return failure.to_openai()


def as_anthropic(body: bytes, status: int) -> bytes:
    """An error of vLLM's, which may have OpenAI's shape or FastAPI's, in Anthropic's."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    found: Any = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    message = found.get("message") if isinstance(found, dict) else found
    return _anthropic(status, message if isinstance(message, str) else "The request failed.")


def as_anthropic_event(event: bytes) -> bytes:
    """An error event of a stream, in either shape, in Anthropic's."""
    body = event[event.find(b"data: ") + 6 :].strip()
    client_errs = b'"invalid_request_error"' in body
    return b"event: error\ndata: " + as_anthropic(body, 400 if client_errs else 500) + b"\n\n"


def _anthropic(status: int, message: str, code: str | None = None) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message}
    if code is not None:  # ours: Anthropic's errors have none
        error["code"] = code
    return json.dumps({"type": "error", "error": error}).encode()
