"""The plain routes of rows of the endpoint table (`shared/api/endpoints.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.core.answer import answer_call
from gateway.core.plain_route import PlainRoute
from gateway.description.schema import NUMBER, TEXT, Kinds, Schema, errors_in, ref
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job import errors
from shared.job.errors import FlotillaError

_JSON, _FORM = "application/json", "multipart/form-data"
_BYTES = {"/v1/embeddings", "/pooling"}
"""With `encoding_format: bytes` they are answered with numbers, one after the other."""
_ON_DISCONNECT = "what happens without a client: cancel, keep, or keep_for=<seconds>"
_MAX_WAIT = "refuse it if it is expected to wait for more seconds, and never let it wait for longer"
_KEY = "requests with the same key and body are one job for 24 h; 1 to 255 visible ASCII characters"


def header(name: str, schema: Schema, description: str) -> Schema:
    """A header of a request, which may be left out."""
    described = schema | {"description": description}
    return {"name": name, "in": "header", "required": False, "schema": described}


CALL_HEADERS: tuple[Schema, ...] = (
    header("Idempotency-Key", TEXT, _KEY),
    header("x-flotilla-on-disconnect", TEXT, _ON_DISCONNECT),
    header("x-flotilla-queue-deadline", NUMBER, "seconds until it has to have started"),
    header("x-flotilla-max-wait", NUMBER, _MAX_WAIT),
    header("x-flotilla-run-deadline", NUMBER, "seconds from its first start to its end"),
)
"""The headers of every request that creates a job."""


def _with_subclasses(kind: type[FlotillaError]) -> Kinds:
    return kind, *(each for sub in kind.__subclasses__() for each in _with_subclasses(sub))


LIMIT_ERRORS: Kinds = (errors.RateLimited, errors.BudgetExceeded)
CALL_ERRORS: Kinds = (
    errors.IdempotencyKeyReused,
    errors.ModelNotFound,
    errors.NoWorker,
    errors.IntakeStopped,
    errors.QueueFull,
    errors.RedisMemoryFull,
    errors.DeadlineUnreachable,
    errors.TooManyWaiting,
    errors.QuotaExceeded,
    *LIMIT_ERRORS,
)
"""The errors of every request that creates a job."""
ANSWER_ERRORS: Kinds = (
    errors.UnknownRoute,  # of a worker that does not have the endpoint
    errors.StreamReset,
    errors.AnswerTooLarge,
    *_with_subclasses(errors.JobFailed),
)
"""The errors of every request that is answered with the answer of a job."""


def endpoint_routes(*paths: str, further: Kinds = ()) -> tuple[PlainRoute, ...]:
    """The routes of these endpoints. `further`: errors that they have beside those of all."""
    return tuple(
        PlainRoute(
            method="POST",
            path=path,
            begin=partial(answer_call, source=ENDPOINTS[path]),
            description=_operation(ENDPOINTS[path], further),
        )
        for path in paths
    )


def _operation(row: Endpoint, further: Kinds) -> Schema:
    media_type = _FORM if row.body is BodyKind.MULTIPART else _JSON
    answer: dict[str, Any] = {_JSON: {"schema": ref(row.response_schema)}}
    if row.stream:
        answer["text/event-stream"] = {"schema": TEXT}
    if row.path in _BYTES:
        answer["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["OpenAI"],
        "summary": row.summary,
        "parameters": list(CALL_HEADERS),
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": ref(row.request_schema)}},
        },
        "responses": {
            "200": {"description": "Successful Response", "content": answer},
            **errors_in(*CALL_ERRORS, *ANSWER_ERRORS, *further),
        },
    }
