"""Every vLLM route in the table of endpoints: queue the request, follow its job.

This is the path of every token, so it is plain ASGI and stands before FastAPI, not in it: no layer
wraps `send`, and no framework looks at the request. Everything else passes through.
"""

from __future__ import annotations

import time
from typing import NoReturn

from fastapi import APIRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import Gateway
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.body import Limits, parsed, read_body
from gateway.http.errors import error_response, in_our_words
from gateway.http.middleware import new_request_id, sent_request_id
from gateway.jobs.admission import admit, asked
from gateway.streaming.answer import JobAnswer
from gateway.streaming.reader import Want
from shared.api.endpoints import ENDPOINTS
from shared.platform import logs
from shared.platform.metrics import GatewayMetrics

router = APIRouter(tags=["OpenAI"])


class Inference:
    """An ASGI application: the endpoints' calls, and `rest` for all others."""

    def __init__(
        self,
        rest: ASGIApp,
        authenticator: Authenticator,
        metrics: GatewayMetrics,
        access: AccessLog,
    ) -> None:
        self.gateway: Gateway
        """Set by the lifespan, before the first request."""
        self._rest = rest
        self._authenticator = authenticator
        self.metrics = metrics
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ENDPOINTS or scope["method"] != "POST":
            await self._rest(scope, receive, send)
            return
        received = time.monotonic()
        request_id = sent_request_id(scope["headers"])
        try:
            answer = await self._submit(scope, receive, received, request_id)
        except Exception as error:
            failure, request_id = in_our_words(error), request_id or new_request_id()
            refusal = error_response(failure, self.metrics, (b"x-request-id", request_id))
            await refusal(scope, receive, send)
            code = failure.code or failure.type
            self._access.note(scope, failure.status, received, request_id, error=code)
            return
        try:
            await answer(scope, receive, send)
        finally:
            self._access.note(
                scope,
                answer.status,
                received,
                request_id or answer.job_id.encode(),
                tenant=answer.tenant,
                job_id=answer.job_id,
                error=answer.error,
            )

    async def _submit(
        self, scope: Scope, receive: Receive, received: float, request_id: bytes | None
    ) -> JobAnswer:
        tenant = await self._authenticator.tenant(scope)
        gateway = self.gateway
        settings = gateway.settings
        body = await read_body(scope, receive, settings.max_body_bytes, settings.body_timeout_s)
        limits = Limits(settings.max_body_values, settings.max_body_objects)
        wanted = await parsed(body, limits, lambda fields: asked(fields, settings))
        job = await admit(gateway, tenant, scope["path"], body, wanted, attached=True)
        logs.bind_contextvars(
            job_id=job.id, request_id=request_id.decode("ascii") if request_id else job.id
        )
        reader = gateway.relay.open(job.id, Want.CHUNKS if job.stream else Want.END)

        def refused(error: Exception) -> None:
            failure = in_our_words(error)
            self.metrics.refused.labels(failure.code or failure.type).inc()
            reader.fail(failure)

        # Whoever waits for an answer need not wait for the queue's word first.
        queued = gateway.submitter.submit(job, refused=refused)
        reader.queued = queued
        return JobAnswer(gateway, job, queued, reader, received, request_id)


def _before_fastapi() -> NoReturn:
    raise AssertionError("`Inference` answers these calls")


# For the API's documentation, and for the 405 that another method gets.
for endpoint in ENDPOINTS.values():
    router.add_api_route(
        endpoint.path,
        _before_fastapi,
        methods=["POST"],
        summary=endpoint.summary,
        response_model=None,
    )
