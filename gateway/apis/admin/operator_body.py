"""The body of an operator's call: options as JSON, and the reason for the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from gateway.apis.context import Gateway
from gateway.http.body import Limits, parse_json, read_body
from shared.api.endpoint import BodyKind
from shared.job.errors import BadRequest

_MAX_BYTES = 1 << 16
_MAX_REASON = 500


async def optional_body(
    request: Request, gateway: Gateway, max_bytes: int = _MAX_BYTES
) -> Mapping[str, Any]:
    """The members of a request's body; empty if it has none. Raises BadRequest and others."""
    chunked = "transfer-encoding" in request.headers
    if request.headers.get("content-length", "0") == "0" and not chunked:
        return {}
    settings = gateway.settings
    body = await read_body(
        request.scope, request.receive, BodyKind.JSON, max_bytes, settings.body_timeout_s
    )
    limits = Limits(settings.max_body_values, settings.max_body_objects)
    return await parse_json(body, limits, lambda fields: fields)


def taken_reason(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The `reason` among the members, and the others. Raises BadRequest."""
    others = dict(fields)
    reason = others.pop("reason", None)
    if reason is None:
        return "", others
    if not isinstance(reason, str) or len(reason) > _MAX_REASON:
        raise BadRequest(f"`reason` must be a text of at most {_MAX_REASON} characters.", "reason")
    return " ".join(reason.split()), others
