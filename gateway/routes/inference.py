"""Every vLLM route in the table of endpoints: queue the request, follow its job."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.admission import admit
from gateway.answer import JobAnswer
from gateway.body import parse_object, read_body
from gateway.context import Gateway, Tenant, TheGateway
from gateway.relay import Want
from shared.endpoints import ENDPOINTS

router = APIRouter(tags=["OpenAI"])

Handler = Callable[[Request, Gateway, str], Awaitable[Response]]


def _handler(path: str) -> Handler:
    async def infer(request: Request, gateway: TheGateway, tenant: Tenant) -> Response:
        received = time.monotonic()
        settings = gateway.settings
        body = await read_body(request, settings.max_body_bytes, settings.body_timeout_s)
        job = await admit(gateway, tenant, path, body, parse_object(body), attached=True)
        reader = gateway.relay.open(job.id, Want.CHUNKS if job.stream else Want.END)
        try:
            await gateway.queue.submit(job, settings.max_queue_depth)
        except BaseException:
            gateway.relay.close(reader)
            raise
        gateway.metrics.submitted.labels(job.pool, job.lane).inc()
        return JobAnswer(gateway, job, reader, received)

    return infer


for endpoint in ENDPOINTS.values():
    router.add_api_route(
        endpoint.path,
        _handler(endpoint.path),
        methods=["POST"],
        summary=endpoint.summary,
        response_model=None,
    )
