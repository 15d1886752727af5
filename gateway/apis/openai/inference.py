"""The endpoints: queue a request as a job and answer with the job's output; or resume an answer.

A request's path: `gateway/http` -> here -> `new_call.py` -> `jobs/admission.py` ->
`jobs/job_factory.py` -> `jobs/submitter.py`. The answer comes from `streaming/answer.py`. Every
token passes this application's `send`, so it is plain ASGI in front of FastAPI and not a route of
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

from fastapi import APIRouter, FastAPI
from starlette.types import Receive, Scope, Send

from gateway.apis.context import Gateway
from gateway.apis.jobs import job_stream
from gateway.apis.openai.new_call import NewCall, new_call
from gateway.apis.responses import response_stream
from gateway.apis.torchserve import predictions
from gateway.core.answer import JobAnswer
from gateway.core.deferred_answer import DeferredAnswer
from gateway.core.log_event import ReadMode
from gateway.core.received_events import StreamPosition
from gateway.core.send_body import StoredAnswer
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.error_response import error_response, to_flotilla_error
from gateway.http.middleware import new_request_id, sent_request_id
from gateway.http.web_pages import WebPages
from shared.api.endpoint import Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import FlotillaError, StreamReset
from shared.platform import logs, request_span
from shared.platform.metrics import GatewayMetrics
from shared.store.redis.lost_attempts import write_lost_attempts
from shared.store.redis.redis_client import UNAVAILABLE

router = APIRouter(tags=["OpenAI"])

_OUT_OF_ATTEMPTS = "too_many_attempts"
_REPLAYED = (b"idempotent-replayed", b"true")


class InferenceApp:
    """The gateway's ASGI application: serves the endpoints, and passes all else on to FastAPI."""

    def __init__(
        self,
        fastapi: FastAPI,
        authenticator: Authenticator,
        metrics: GatewayMetrics,
        access: AccessLog,
        web_pages: WebPages,
    ) -> None:
        self._fastapi = fastapi
        self._web_pages = web_pages
        self._authenticator = authenticator
        self.metrics = metrics
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._fastapi(scope, receive, send)
            return
        received = time.monotonic()
        request_span.begin(scope["headers"], partial(self._authenticator.is_operator, scope))
        endpoint = ENDPOINTS.get(scope["path"])
        try:
            self._web_pages.check(scope, checks_type=endpoint is None)
        except FlotillaError as error:
            await self._refuse(error, scope, receive, send, received)
            return
        resume = None
        if endpoint is None or scope["method"] != "POST":
            resume = _resumption(scope)
            if resume is None and not predictions.is_prediction(scope):
                await self._fastapi(scope, receive, send)
                return
        request_id = sent_request_id(scope["headers"])
        answer_send = send
        try:
            if resume is not None:
                tenant = await self._authenticator.tenant(scope)
                gateway: Gateway = self._fastapi.state.gateway
                answer: JobAnswer | StoredAnswer = await resume(
                    gateway, scope, tenant, received, request_id
                )
            else:
                if endpoint is None:
                    await self._authenticator.tenant(scope)  # before its body is read
                    gateway = self._fastapi.state.gateway
                    endpoint, receive, answer_send = await predictions.endpoint_request(
                        gateway, scope, receive, send
                    )
                answer = await self._submit(endpoint, scope, receive, received, request_id)
        except Exception as error:
            await self._refuse(to_flotilla_error(error), scope, receive, send, received)
            return
        try:
            await answer(scope, receive, answer_send)
            await self._write_lost_attempts(answer)
        finally:
            self._access.record(
                scope,
                answer.status,
                received,
                request_id or answer.job_id.encode(),
                tenant=answer.tenant,
                job_id=answer.job_id,
                error=answer.error,
            )

    async def _refuse(
        self, error: FlotillaError, scope: Scope, receive: Receive, send: Send, received: float
    ) -> None:
        request_id = sent_request_id(scope["headers"]) or new_request_id()
        refusal = error_response(error, self.metrics, scope, (b"x-request-id", request_id))
        await refusal(scope, receive, send)
        code = error.code or error.type
        self._access.record(scope, error.status, received, request_id, error=code)

    async def _write_lost_attempts(self, answer: JobAnswer | StoredAnswer) -> None:
        """Of a traced job that has failed because its workers were lost: no further one does it."""
        span = request_span.current()
        if span is None or answer.error != _OUT_OF_ATTEMPTS:
            return
        gateway: Gateway = self._fastapi.state.gateway
        with contextlib.suppress(*UNAVAILABLE):
            job = await gateway.queue.get(answer.job_id)
            if job is not None:
                behind_s, after_all = span.began_at - job.created_at, len(job.attempts) + 1
                write_lost_attempts(job, span.ref, after_all, behind_s)

    def fail_open_streams(self, error: Exception) -> None:
        """End all answers that are not complete with this error."""
        gateway: Gateway = self._fastapi.state.gateway
        gateway.relay.fail_all(error)

    def end_overviews(self) -> None:
        """End the streams of the overview, which have no end of their own."""
        gateway: Gateway = self._fastapi.state.gateway
        gateway.sampler.end_streams()

    @property
    def format_mismatch(self) -> str:
        """Why this release can't use its Redis; empty if it can (store/redis/format_version.py)."""
        gateway: Gateway | None = getattr(self._fastapi.state, "gateway", None)
        return gateway.format.mismatch if gateway else ""

    async def _submit(
        self,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        received: float,
        request_id: bytes | None,
    ) -> JobAnswer | StoredAnswer:
        tenant = await self._authenticator.tenant(scope)
        gateway: Gateway = self._fastapi.state.gateway
        call = await new_call(gateway, endpoint, scope, receive, tenant, request_id)
        if call.joined:
            return await _replayed(gateway, call.joined, call, received, request_id)
        job, prefer = call.job, call.prefer
        logs.bind_contextvars(
            job_id=job.id, request_id=request_id.decode("ascii") if request_id else job.id
        )
        chunks = job.stream and not prefer
        reader = gateway.relay.open(job.id, ReadMode.CHUNKS if chunks else ReadMode.END)

        def on_error(error: Exception) -> None:
            failure = to_flotilla_error(error)
            self.metrics.refused.labels(failure.code or failure.type).inc()
            reader.fail(failure)

        # Not awaited: if the queue refuses the job, the reader fails.
        queued = gateway.submitter.submit(job, on_error=on_error)
        reader.queued = queued
        if call.keyed:
            await asyncio.wait({queued})
            joined_id = None if queued.exception() else queued.result()
            if joined_id is not None:
                gateway.relay.close(reader)
                return await _replayed(gateway, joined_id, call, received, request_id)
        if call.background:
            return await response_stream.background_answer(
                gateway, job, queued, reader, received, request_id
            )
        if prefer:
            return DeferredAnswer(
                gateway.streams, job, queued, reader, received, request_id, prefer
            )
        return JobAnswer(gateway.streams, job, queued, reader, received, request_id)


def _resumption(scope: Scope) -> Callable[..., Awaitable[JobAnswer]] | None:
    """What answers a request for a stream that an earlier request has begun; None for others."""
    job_id = job_stream.job_id_in(scope)
    if job_id is not None:
        return partial(job_stream.resume, job_id=job_id)
    response_id = response_stream.response_id_in(scope)
    if response_id is not None:
        return partial(response_stream.resume, response=response_id)
    return None


async def _replayed(
    gateway: Gateway, job_id: str, call: NewCall, received: float, request_id: bytes | None
) -> JobAnswer | StoredAnswer:
    """The answer of the job that an earlier request with the same idempotency key has made."""
    gateway.metrics.replayed.inc()
    joined = await gateway.queue.get(job_id)
    if joined is None:
        raise StreamReset("The job of this Idempotency-Key is gone; send the request again.")
    logs.bind_contextvars(job_id=joined.id)
    if call.background and not joined.stream:
        return await response_stream.replayed_answer(gateway, joined, request_id, [_REPLAYED])
    start = StreamPosition()
    return await job_stream.answer_of(
        gateway, joined, start, received, request_id, [_REPLAYED], prefer=call.prefer
    )


def _unreachable() -> NoReturn:
    raise AssertionError("InferenceApp serves these requests before FastAPI")


# For the API's description, and for the 405 that other methods get.
for endpoint in ENDPOINTS.values():
    router.add_api_route(
        endpoint.path,
        _unreachable,
        methods=["POST"],
        summary=endpoint.summary,
        response_model=None,
    )
