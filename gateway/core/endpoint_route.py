"""The plain routes of rows of the endpoint table (`shared/api/endpoints.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.core.answer_call import answer_call
from gateway.core.plain_route import PlainRoute
from gateway.core.schema import NUMBER, TEXT, Schema, ref
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS

_JSON, _FORM = "application/json", "multipart/form-data"
_BYTES = {"/v1/embeddings", "/pooling"}
"""With `encoding_format: bytes` they are answered with numbers, one after the other."""
ON_DISCONNECT = "what happens without a client: cancel, keep, or keep_for=<seconds>"
_KEY = "requests with the same key and body are one job for 24 h; 1 to 255 visible ASCII characters"
_PREFER = (
    "`respond-async`: 202 with the job at once; `wait=N`: 202 if the answer is not complete after "
    "N seconds. The answer has `Preference-Applied`"
)


def header(name: str, schema: Schema, description: str) -> Schema:
    """A header of a request, which may be left out."""
    described = schema | {"description": description}
    return {"name": name, "in": "header", "required": False, "schema": described}


CALL_HEADERS: tuple[Schema, ...] = (
    header("Idempotency-Key", TEXT, _KEY),
    header("x-flotilla-on-disconnect", TEXT, ON_DISCONNECT),
    header("x-flotilla-queue-deadline", NUMBER, "seconds until it has to have started"),
    header("x-flotilla-run-deadline", NUMBER, "seconds from its first start to its end"),
)
"""Of every request that creates a job."""
PREFER: Schema = header("Prefer", TEXT, _PREFER)


def endpoint_routes(*paths: str) -> tuple[PlainRoute, ...]:
    """The routes of these endpoints."""
    return tuple(
        PlainRoute(
            method="POST",
            path=path,
            begin=partial(answer_call, source=ENDPOINTS[path]),
            description=_operation(ENDPOINTS[path]),
        )
        for path in paths
    )


def _operation(row: Endpoint) -> Schema:
    media_type = _FORM if row.body is BodyKind.MULTIPART else _JSON
    answer: dict[str, Any] = {_JSON: {"schema": ref(row.response_schema)}}
    if row.stream:
        answer["text/event-stream"] = {"schema": TEXT}
    if row.path in _BYTES:
        answer["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["OpenAI"],
        "summary": row.summary,
        "parameters": [*CALL_HEADERS, PREFER],
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": ref(row.request_schema)}},
        },
        "responses": {
            "200": {"description": "Successful Response", "content": answer},
            "202": {
                "description": "The job, for a request with `Prefer`",
                "content": {_JSON: {"schema": ref("Job")}},
            },
        },
    }
