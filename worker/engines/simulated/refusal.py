"""VLLM's errors for invalid requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.responses import JSONResponse

_UNION_BRANCH = re.compile(r"^str$|[\[({]")
"""Parts of an error's location that pydantic adds for a union; vLLM removes them too."""


class RefusedError(Exception):
    """The request is invalid; `response` is vLLM's answer to it."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        kind: str = "BadRequestError",
        status: int = 400,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.response = JSONResponse(error_body(message, kind, param, status), status, headers)


def error_body(message: str, kind: str, param: str | None, code: int) -> dict[str, Any]:
    """The JSON of an error in vLLM's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def missing(name: str) -> RefusedError:
    """The error for a field that has to be there."""
    fault = {"type": "missing", "loc": (name,), "msg": "Field required", "input": {}}
    return invalid_body([fault])


def bad_value(message: str, param: str, value: object = None) -> RefusedError:
    """The error for a field's invalid value, in vLLM's shape."""
    given = "" if value is None else f", value={value}"
    return RefusedError(f"{message} (parameter={param}{given})", param)


def invalid_body(errors: Iterable[Any]) -> RefusedError:
    """The error for a body: from pydantic's errors, from dicts like them, or from plain lines."""
    lines, params = [], []
    for error in errors:
        line = error
        if isinstance(error, dict):
            path = ["body", *(str(p) for p in error["loc"] if not _UNION_BRANCH.search(str(p)))]
            params.append(".".join(path))
            line = {**error, "loc": params[-1], "input": _summary(error["input"])}
        lines.append(f"  {line}")
    label = "error" if len(lines) == 1 else "errors"
    message = "\n".join([f"{len(lines)} validation {label}:", *lines[:10]])
    return RefusedError(message, params[0] if params else None, kind="Bad Request")


def _summary(value: object) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}...[truncated]"
