"""`GET /jobs/{id}/stream`: an endpoint's answer taken up again, by its job's id.

Every token of the answer passes the application's `send`, as for the endpoints: routes/inference.py
calls this in front of FastAPI.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NoReturn
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query
from starlette.types import Scope

from gateway.apis.context import Gateway
from gateway.apis.responses.stored_response import begins_at_once
from gateway.core.answer import JobAnswer
from gateway.core.deferred_answer import DeferredAnswer
from gateway.core.job_lookup import job_of
from gateway.core.log_event import ReadMode
from gateway.core.received_events import StreamPosition
from gateway.http.prefer import Prefer
from shared.job.errors import BadRequest
from shared.job.job import Job
from shared.platform import request_span
from shared.store.redis.redis_client import UNAVAILABLE

router = APIRouter(prefix="/jobs", tags=["jobs"])

_REDIS_PATIENCE_S, _RETRY_S = 5.0, 0.1
_PATH = re.compile(r"/jobs/([^/]+)/stream")
_AFTER, _CRC32 = r"^[0-9]{1,15}$", r"^[0-9A-Fa-f]{1,8}$"
_SYNTAX = {"after": _AFTER, "crc32": _CRC32}


@router.get("/{job_id}/stream", response_model=None)
def describe(
    job_id: str,
    after: Annotated[str, Query(pattern=_AFTER)] = "0",
    crc32: Annotated[str | None, Query(pattern=_CRC32)] = None,
) -> NoReturn:
    """The endpoint's own answer from the chunk behind the first `after` events on, then live.

    `crc32`: of the bytes of those events, in hex; if it differs the answer is 409 `stream_reset`.
    """
    raise AssertionError("InferenceApp serves these requests before FastAPI")


def job_id_in(scope: Scope) -> str | None:
    """The job whose stream a request asks for; None if it asks for something else."""
    if scope["method"] != "GET" or not scope["path"].endswith("/stream"):
        return None
    match = _PATH.fullmatch(scope["path"])
    return match[1] if match else None


async def resume(
    gateway: Gateway,
    scope: Scope,
    tenant: str,
    received: float,
    request_id: bytes | None,
    job_id: str,
) -> JobAnswer:
    """The answer to a request for a stream. Raises NotFound, BadRequest, and redis' errors.

    `received`: when this request came, on the monotonic clock in seconds.
    """
    _refuse_body(scope)
    position = stream_position(scope["query_string"])

    async def begin() -> JobAnswer:
        job = await job_of(gateway.queue, gateway.settings, tenant, job_id)
        awaited = await begins_at_once(gateway.queue, job)
        from_there = position._replace(awaited=awaited)
        return await answer_of(gateway, job, from_there, received, request_id)

    answer = await _patiently(begin)
    gateway.metrics.resumed.inc()
    return answer


async def _patiently(begin: Callable[[], Awaitable[JobAnswer]]) -> JobAnswer:
    """Repeat it for a while where Redis is away: the client has lost one connection already."""
    until = time.monotonic() + _REDIS_PATIENCE_S
    while True:
        try:
            return await begin()
        except UNAVAILABLE:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_RETRY_S)


async def answer_of(
    gateway: Gateway,
    job: Job,
    position: StreamPosition,
    received: float,
    request_id: bytes | None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    opening: bytes = b"",
    prefer: Prefer | None = None,
) -> JobAnswer:
    """The answer of a job that an earlier request has submitted; see JobAnswer."""
    span = request_span.current()
    if span is not None:
        span.join(job.origin.traceparent)
    chunks = job.stream and not prefer
    reader = gateway.relay.open(job.id, ReadMode.CHUNKS if chunks else ReadMode.END)
    try:
        if not job.state.terminal:
            await gateway.queue.watch(job.id, gateway.id, follow=False)
        reader.resync()  # the log has what was published before this gateway watched
        if prefer:
            return DeferredAnswer(
                gateway.streams, job, None, reader, received, request_id, prefer, headers
            )
        return JobAnswer(
            gateway.streams, job, None, reader, received, request_id, position, headers, opening
        )
    except BaseException:
        gateway.relay.close(reader)
        raise


def _refuse_body(scope: Scope) -> None:
    """Nothing reads the body of this request. Raises BadRequest."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            raise BadRequest("A request for a stream has no body.")


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
            raise BadRequest(f"`{name}` must be {kind}.", name)
        found[name] = value
    crc32 = found.get("crc32")
    return StreamPosition(int(found.get("after", "0")), None if crc32 is None else int(crc32, 16))
