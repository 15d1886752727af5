"""`POST /jobs/{id}/retry`: submit the request of a job that ended without an answer again."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway.context import GatewayDep, TenantDep
from gateway.http.call_headers import call_headers
from gateway.http.middleware import sent_request_id
from gateway.http.query import known_only
from gateway.jobs.job_lookup import job_of
from gateway.jobs.job_object import full
from gateway.jobs.repetition import repetition
from shared.protocol.idempotency import IdempotencyKey

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[known_only])


@router.post("/{job_id}/retry", status_code=202, response_model=None)
async def retry(job_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Submit the request of a failed, cancelled or expired job again, as a new job.

    Answers 202 with the new job, whose `retried_from` is the old one; that stays as it is.
    """
    job = await job_of(gateway.queue, gateway.settings, tenant, job_id)
    name = call_headers(request.scope["headers"]).idempotency_key
    key = IdempotencyKey.of(tenant, f"/jobs/{job_id}/retry", name, b"") if name else None
    new = await repetition(gateway.queue, gateway.factory, job, idempotency=key)
    new = new.with_request_id(sent_request_id(request.scope["headers"]))
    joined = await gateway.submitter.submit(new)
    submitted = await job_of(gateway.queue, gateway.settings, tenant, joined or new.id)
    headers = {
        "x-flotilla-job-id": submitted.id,
        "location": f"/jobs/{submitted.id}",
        "retry-after": "1",
    }
    if joined:
        gateway.metrics.replayed.inc()
        headers["idempotent-replayed"] = "true"
    return JSONResponse(await full(gateway.queue, gateway.fleet, submitted), 202, headers)
