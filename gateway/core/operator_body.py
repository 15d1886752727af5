"""The body of an operator's call: options as JSON, and the reason for the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from gateway.core.call import read_object
from gateway.core.context import Gateway
from gateway.http.body import has_body
from shared.job.errors import BadRequest

_MAX_BYTES = 1 << 16
_MAX_REASON = 500


async def optional_body(
    request: Request, gateway: Gateway, max_bytes: int = _MAX_BYTES
) -> Mapping[str, Any]:
    """The members of a request's body; empty if it has none. Raises BadRequest and others."""
    if not has_body(request.scope["headers"]):
        return {}
    return await read_object(
        gateway.settings, request.scope, request.receive, lambda fields: fields, max_bytes
    )


def taken_reason(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The `reason` among the members, and the others. Raises BadRequest."""
    others = dict(fields)
    reason = others.pop("reason", None)
    if reason is None:
        return "", others
    if not isinstance(reason, str) or len(reason) > _MAX_REASON:
        raise BadRequest(f"`reason` must be a text of at most {_MAX_REASON} characters.", "reason")
    return " ".join(reason.split()), others
