"""`POST /jobs/{id}/retry`: submit the request of a job that has ended again, or a changed one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.apis.jobs.accepted_job import accepted
from gateway.core.call import new_call, repeated_call
from gateway.core.context import GatewayDep, TenantDep
from gateway.core.incoming import Incoming
from gateway.core.job_lookup import job_of
from gateway.core.new_call import JobOptions, Unwrap, Wrapped
from gateway.description.endpoint_route import CALL_ERRORS
from gateway.description.schema import ref, shows, takes
from gateway.http.body import has_body, raw_member
from gateway.http.query import known_only
from shared.api.endpoint import BodyKind, Endpoint, StreamFormat
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest, NotRepeatable
from shared.job.job import Job

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[known_only])


@router.post(
    "/{job_id}/retry",
    status_code=202,
    openapi_extra=shows("Job", 202, errors=(NotRepeatable, *CALL_ERRORS))
    | takes(ref("RetryRequest"), required=False),
)
async def retry(job_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Submit the request of a failed, cancelled or expired job again, as a new job.

    With `{"body": {...}}` that body is sent to the job's endpoint in place of the old one; a
    completed job can be repeated like that, too. Answers 202 with the new job, whose `retried_from`
    is the old one; that stays as it is.
    """
    job = await job_of(gateway.queue, gateway.settings, tenant, job_id)
    incoming = Incoming.of(request)
    if has_body(request.scope["headers"]):
        source = _edited(job)
        return await accepted(gateway, await new_call(gateway, incoming, source, attached=False))
    return await accepted(gateway, await repeated_call(gateway, incoming, job))


def _edited(job: Job) -> Unwrap:
    """Finds the new body in the request for a job's repetition. Raises NotRepeatable."""
    if not job.state.terminal:
        raise NotRepeatable(f"This job is {job.state}; only one that has ended can be repeated.")
    found = ENDPOINTS.get(job.endpoint)
    if found is None or found.body is not BodyKind.JSON:
        raise NotRepeatable("The request of this job is a form, so it can't have another body.")
    if found.stream is StreamFormat.RESPONSE_EVENTS:
        raise NotRepeatable("A response can't be repeated with another body; send a new request.")
    endpoint: Endpoint = found

    def call_in(raw: bytes, fields: dict[str, Any]) -> Wrapped:
        unknown = sorted(fields.keys() - {"body"})
        if unknown:
            name = unknown[0][:64]
            raise BadRequest(f"There is no field `{name}`; known: body.", name)
        body = fields.get("body")
        if not isinstance(body, dict):
            raise BadRequest("`body` must be the body of the new request, an object.", "body")
        options = JobOptions(
            lane="" if "service_tier" in body else job.lane,
            deadline_s=job.total_deadline_s,
            queue_deadline_s=job.queue_deadline_s,
            run_deadline_s=job.run_deadline_s,
            metadata=job.metadata,
            retried_from=job.id,
        )
        return Wrapped(endpoint, body, raw_member(raw, "body"), options)

    return call_in
