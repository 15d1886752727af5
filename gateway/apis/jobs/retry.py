"""`POST /jobs/{id}/retry`: submit the request of a job that has ended again, or a changed one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.apis.context import Gateway, GatewayDep, TenantDep
from gateway.apis.jobs.job_object import full
from gateway.apis.jobs.repetition import repetition
from gateway.core.admission import CheckedRequest, admit, check_request
from gateway.core.job_lookup import job_of
from gateway.core.send_body import BodyResponse
from gateway.gateway_settings import GatewaySettings
from gateway.http.body import Limits, parse_json, raw_member, read_body
from gateway.http.call_headers import call_headers
from gateway.http.middleware import sent_request_id
from gateway.http.query import known_only
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest, NotRepeatable
from shared.job.idempotency import IdempotencyKey
from shared.job.job import Job, NewJob

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[known_only])


@router.post("/{job_id}/retry", status_code=202, response_model=None)
async def retry(job_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Submit the request of a failed, cancelled or expired job again, as a new job.

    With `{"body": {...}}` that body is sent to the job's endpoint in place of the old one; a
    completed job can be repeated like that, too. Answers 202 with the new job, whose `retried_from`
    is the old one; that stays as it is.
    """
    job = await job_of(gateway.queue, gateway.settings, tenant, job_id)
    raw = await _raw_body(request, gateway.settings)
    name = call_headers(request.scope["headers"]).idempotency_key
    key = IdempotencyKey.of(tenant, f"/jobs/{job_id}/retry", name, raw) if name else None
    if raw:
        new = await _edited(gateway, job, raw, key)
    else:
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
    return BodyResponse(await full(gateway.queue, gateway.fleet, submitted), 202, headers)


async def _raw_body(request: Request, settings: GatewaySettings) -> bytes:
    """The request's body; empty if it has none."""
    chunked = "transfer-encoding" in request.headers
    if request.headers.get("content-length", "0") == "0" and not chunked:
        return b""
    return await read_body(
        request.scope,
        request.receive,
        BodyKind.JSON,
        settings.max_body_bytes,
        settings.body_timeout_s,
    )


async def _edited(gateway: Gateway, job: Job, raw: bytes, key: IdempotencyKey | None) -> NewJob:
    """A job of the same endpoint with another body. Raises BadRequest, NotRepeatable and others."""
    settings, endpoint = gateway.settings, ENDPOINTS.get(job.endpoint)
    if not job.state.terminal:
        raise NotRepeatable(f"This job is {job.state}; only one that has ended can be repeated.")
    if endpoint is None or endpoint.body is not BodyKind.JSON:
        raise NotRepeatable("The request of this job is a form, so it can't have another body.")
    limits = Limits(settings.max_body_values, settings.max_body_objects)
    checked, has_tier = await parse_json(
        raw, limits, lambda fields: _check(fields, endpoint, settings)
    )
    if checked.response is not None:
        raise NotRepeatable("A response can't be repeated with another body; send a new request.")
    model = await admit(gateway.fleet, checked)
    body = raw_member(raw, "body")
    new = gateway.factory.detached(endpoint, job.tenant, model, checked, body, "", key)
    return new._replace(
        lane=checked.lane if has_tier else job.lane,
        metadata=job.metadata,
        deadline_s=job.total_deadline_s,
        queue_deadline_s=job.queue_deadline_s,
        run_deadline_s=job.run_deadline_s,
        retried_from=job.id,
    )


def _check(
    fields: dict[str, Any], endpoint: Endpoint, settings: GatewaySettings
) -> tuple[CheckedRequest, bool]:
    """What was checked of `body`, and whether it names a service tier. Raises BadRequest."""
    unknown = sorted(fields.keys() - {"body"})
    if unknown:
        raise BadRequest(f"There is no field `{unknown[0][:64]}`; known: body.", unknown[0][:64])
    body = fields.get("body")
    if not isinstance(body, dict):
        raise BadRequest("`body` must be the body of the new request, an object.", "body")
    return check_request(endpoint, body, settings), "service_tier" in body
