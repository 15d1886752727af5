"""Errors have OpenAI's shape, and Anthropic's under /v1/messages."""

from __future__ import annotations

import json

import pytest

from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import as_anthropic, error_body, error_style
from shared.job.errors import (
    BadRequest,
    BodyTooLarge,
    DeadlineExceeded,
    FlotillaError,
    ModelNotFound,
    QueueFull,
    Unauthorized,
)


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("/v1/messages", ErrorStyle.ANTHROPIC),
        ("/v1/messages/", ErrorStyle.ANTHROPIC),
        ("/v1/messages/count_tokens", ErrorStyle.ANTHROPIC),
        ("/v1/messagesx", ErrorStyle.OPENAI),
        ("/v1/chat/completions", ErrorStyle.OPENAI),
        ("/jobs/v1/messages", ErrorStyle.OPENAI),
        ("", ErrorStyle.OPENAI),
    ],
)
def test_the_style_is_that_of_the_row_at_or_above_the_path(path: str, style: ErrorStyle) -> None:
    assert error_style(path) is style


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (BadRequest("bad", "stream"), "invalid_request_error"),
        (Unauthorized("who"), "authentication_error"),
        (ModelNotFound("which"), "not_found_error"),
        (BodyTooLarge("large"), "request_too_large"),
        (QueueFull("full"), "overloaded_error"),
        (DeadlineExceeded("late"), "timeout_error"),
        (FlotillaError("broken"), "api_error"),
    ],
)
def test_an_error_has_anthropics_type_for_its_status(failure: FlotillaError, kind: str) -> None:
    body = json.loads(error_body(failure, ErrorStyle.ANTHROPIC))
    code = {"code": failure.code} if failure.code else {}
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": str(failure), **code},
    }
    assert error_body(failure, ErrorStyle.OPENAI) == failure.to_openai()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m", "type": "Bad Request", "param": "x", "code": 400}}', "m"),
        (b'{"type": "error", "error": {"type": "BadRequestError", "message": "m"}}', "m"),
        (b'{"detail": "m"}', "m"),
        (b'{"detail": [{"loc": []}]}', "The request failed."),
        (b'{"error": {"message": 5}}', "The request failed."),
        (b"[]", "The request failed."),
        (b"\xff", "The request failed."),
    ],
)
def test_vllms_errors_are_reshaped(body: bytes, message: str) -> None:
    error = {"type": "invalid_request_error", "message": message}
    assert json.loads(as_anthropic(body, 400)) == {"type": "error", "error": error}
