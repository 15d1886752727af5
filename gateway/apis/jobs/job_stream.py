"""`GET /jobs/{id}/stream`: an endpoint's answer from a given event on, by its job's id."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

from gateway.core.answer import JobAnswer, answer_of
from gateway.core.context import Gateway
from gateway.core.incoming import Incoming
from gateway.core.job_lookup import own_or_any_job
from gateway.core.plain_route import PlainRoute
from gateway.core.resume import StreamPosition
from gateway.description.endpoint_route import ANSWER_ERRORS
from gateway.description.schema import TEXT, Schema, errors_in
from gateway.http.body import has_body
from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest
from shared.store.errors import StoreUnavailable

_REDIS_PATIENCE_S, _RETRY_S = 5.0, 0.1
_AFTER, _CRC32 = r"^[0-9]{1,15}$", r"^[0-9A-Fa-f]{1,8}$"
_SYNTAX = {"after": _AFTER, "crc32": _CRC32}


async def resume(gateway: Gateway, incoming: Incoming) -> JobAnswer:
    """The answer to a request for a stream. Raises NotFound, BadRequest, and StoreError."""
    scope = incoming.scope
    if has_body(scope["headers"]):
        raise BadRequest("A request for a stream has no body.")  # nothing would read it
    position = stream_position(scope["query_string"])
    job_id = scope["path"].split("/")[2]

    async def begin() -> JobAnswer:
        job = await own_or_any_job(gateway.queue, gateway.settings, incoming.key, job_id)
        step = gateway.steps.get(job.endpoint)
        awaited = step is not None and await step.begins_at_once(job)
        return answer_of(gateway, job, position._replace(awaited=awaited), incoming)

    return await _patiently(begin)


async def _patiently(begin: Callable[[], Awaitable[JobAnswer]]) -> JobAnswer:
    """Repeat it for a while if Redis can't be reached: the client has lost a connection already."""
    until = time.monotonic() + _REDIS_PATIENCE_S
    while True:
        try:
            return await begin()
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_RETRY_S)


def stream_position(query: bytes) -> StreamPosition:
    """The query parameters of a request. Raises BadRequest."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in _SYNTAX:
            known = ", ".join(sorted(_SYNTAX))
            raise BadRequest(
                f"Unknown query parameter {name[:64]!r}; this route has: {known}.", name[:64]
            )
        if name in found:
            raise BadRequest(f"`{name}` is there twice.", name)
        if not re.fullmatch(_SYNTAX[name], value):
            kind = "a whole number" if name == "after" else "at most eight hex digits"
            raise BadRequest(f"`{name}` must be {kind}, not {sent(value)}.", name)
        found[name] = value
    crc32 = found.get("crc32")
    return StreamPosition(int(found.get("after", "0")), None if crc32 is None else int(crc32, 16))


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


STREAM = PlainRoute(
    method="GET",
    path="/jobs/{job_id}/stream",
    begin=resume,
    description={
        "tags": ["jobs"],
        "summary": "The endpoint's own answer behind a number of events, then live",
        "description": "From the chunk behind the first `after` events on. `crc32`: of the bytes "
        "of those events, in hex; if it differs the answer is 409 `stream_reset`.",
        "parameters": [
            _parameter("job_id", "path", TEXT),
            _parameter("after", "query", TEXT | {"pattern": _AFTER, "default": "0"}),
            _parameter("crc32", "query", TEXT | {"pattern": _CRC32}),
        ],
        "responses": {
            "200": {
                "description": "Successful Response",
                "content": {
                    "application/json": {"schema": {}},
                    "text/event-stream": {"schema": TEXT},
                },
            },
            **errors_in(*ANSWER_ERRORS),
        },
    },
)
