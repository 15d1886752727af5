"""`GET /v1/responses/{id}?stream=true`: the events of a response, by its id, on any gateway.

The events of a response are numbered from 0 without a gap, so `starting_after=N` is the stream
behind its first `N + 1` events. Every token passes the application's `send`, as for the endpoints:
routes/inference.py calls this in front of FastAPI.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from starlette.types import Scope

from gateway.apis.context import Gateway
from gateway.apis.jobs.job_stream import answer_of
from gateway.apis.responses.response_object import response_object
from gateway.apis.responses.stored_response import stored_response
from gateway.core.answer import JobAnswer
from gateway.core.reader import Reader
from gateway.core.received_events import StreamPosition
from gateway.core.send_body import StoredAnswer
from shared.job.errors import BadRequest
from shared.job.job import Job, NewJob
from shared.job.response_id import response_id
from shared.job.response_opening import opening, unfinished
from shared.job.states import JobState
from shared.store.redis.stored_body import Body

_PATH = re.compile(r"/v1/responses/([^/]+)")
_KNOWN = frozenset({"stream", "starting_after", "include", "include[]", "include_obfuscation"})
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})  # as the other routes read it
_NUMBER = re.compile(r"[0-9]{1,15}")
BEHIND_OPENING = StreamPosition(after=1, awaited=True)
"""For a stream whose first event the gateway has sent already: without the worker's."""


def response_id_in(scope: Scope) -> str | None:
    """The response whose events a request asks for; None if it asks for something else."""
    if scope["method"] != "GET" or b"stream=" not in scope["query_string"]:
        return None
    match = _PATH.fullmatch(scope["path"])
    asked = match and dict(_query(scope)).get("stream", "").lower() in _TRUE
    return match[1] if match and asked else None


async def resume(
    gateway: Gateway,
    scope: Scope,
    tenant: str,
    received: float,
    request_id: bytes | None,
    response: str,
) -> JobAnswer:
    """The answer with the response's events. Raises NotFound, BadRequest, and redis' errors."""
    starting_after = _starting_after(scope)
    stored = await stored_response(gateway.queue, tenant, response)
    if not stored.job.stream:
        raise BadRequest("Only a response that was created with `stream: true` has events.")
    position, first = StreamPosition(awaited=True), b""
    if starting_after is not None:
        position = StreamPosition(after=starting_after + 1, awaited=True)
    elif stored.job.state is JobState.QUEUED:
        position, first = BEHIND_OPENING, opening(stored.job.id, stored.body)
    gateway.metrics.resumed.inc()
    return await answer_of(gateway, stored.job, position, received, request_id, opening=first)


async def background_answer(
    gateway: Gateway,
    job: NewJob,
    queued: asyncio.Future[str | None],
    reader: Reader,
    received: float,
    request_id: bytes | None,
) -> JobAnswer | StoredAnswer:
    """The answer to a request that queues a response in the background: at once.

    Raises redis' errors.
    """
    await asyncio.wait({queued})
    position, first = None, b""
    if queued.exception() is None:  # else the reader has failed, and so does the answer
        try:
            if not job.stream:
                gateway.relay.close(reader)
                # `queued`, as OpenAI and vLLM answer, although a worker may have it already.
                begun = unfinished(job.id, job.body, "queued") | {"model": job.model}
                body = Body(json.dumps(begun, ensure_ascii=False).encode())
                return StoredAnswer(job, 200, body, request_id)
            position, first = BEHIND_OPENING, opening(job.id, job.body)
        except BaseException:
            gateway.relay.close(reader)
            raise
    return JobAnswer(
        gateway.streams, job, queued, reader, received, request_id, position, opening=first
    )


async def replayed_answer(
    gateway: Gateway,
    job: Job,
    request_id: bytes | None,
    headers: Sequence[tuple[bytes, bytes]],
) -> StoredAnswer:
    """The response of an earlier request as it is now, as the answer to a repeated one."""
    stored = await stored_response(gateway.queue, job.tenant, response_id(job.id))
    body = await response_object(gateway.queue, stored)
    return StoredAnswer(job, 200, body, request_id, headers)


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _starting_after(scope: Scope) -> int | None:
    found = _query(scope)
    for name, _ in found:
        if name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise BadRequest(
                f"Unknown query parameter {name[:64]!r}; this route has: {known}.", name[:64]
            )
    value = dict(found).get("starting_after")
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise BadRequest("`starting_after` must be the number of an event.", "starting_after")
    return int(value)
