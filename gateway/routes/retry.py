"""`POST /jobs/{id}/retry`: submit the request of a job that ended without an answer again."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from gateway.context import GatewayDep, TenantDep
from gateway.http.query import known_only
from gateway.jobs.job_lookup import job_of
from gateway.jobs.job_object import full
from gateway.jobs.repetition import repetition

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[known_only])


@router.post("/{job_id}/retry", status_code=202, response_model=None)
async def retry(job_id: str, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Submit the request of a failed, cancelled or expired job again, as a new job.

    Answers 202 with the new job, whose `retried_from` is the old one; that stays as it is.
    """
    job = await job_of(gateway.queue, gateway.settings, tenant, job_id)
    new = await repetition(gateway.queue, gateway.factory, job)
    await gateway.submitter.submit(new)
    submitted = await job_of(gateway.queue, gateway.settings, tenant, new.id)
    headers = {
        "x-flotilla-job-id": new.id,
        "location": f"/jobs/{new.id}",
        "retry-after": "1",
    }
    return JSONResponse(await full(gateway.queue, gateway.fleet, submitted), 202, headers)
