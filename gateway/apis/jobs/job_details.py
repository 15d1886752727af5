"""What happened to a job and why; and its request, to submit it again with changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from gateway.apis.jobs.timeline import Timeline, timeline
from gateway.apis.jobs.why import PoolSituation, Waiting, Why, explain
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.job_lookup import any_job_of, own_or_any_job
from gateway.core.job_object import summaries
from gateway.description.schema import shows
from gateway.http.held_bytes import hold_answer
from gateway.http.query import known_only
from shared.api.endpoint import BodyKind, StreamFormat
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import NotFound, NotRepeatable
from shared.job.job import Job
from shared.store.views import places

router = APIRouter(tags=["jobs"], dependencies=[known_only])


@router.get("/jobs/{job_id}/timeline")
async def get_timeline(job_id: str, gateway: GatewayDep, key: KeyDep) -> Timeline:
    """What has happened to the job: events, each a sentence, and the spans between them."""
    return timeline(await own_or_any_job(gateway.queue, gateway.settings, key, job_id))


@router.get("/jobs/{job_id}/why")
async def get_why(job_id: str, gateway: GatewayDep, key: KeyDep) -> Why:
    """Why the job waits, or why it failed: a sentence, and the facts behind it."""
    return await _why(gateway, await own_or_any_job(gateway.queue, gateway.settings, key, job_id))


@router.get(
    "/jobs/{job_id}/request", openapi_extra=shows("JobRequestKept", errors=(NotRepeatable,))
)
async def get_request(job_id: str, request: Request, gateway: GatewayDep, key: KeyDep) -> Response:
    """The job's request as it was sent, as long as it is kept: to submit it again with changes."""
    job = await own_or_any_job(gateway.queue, gateway.settings, key, job_id)
    await hold_answer(request.scope, await gateway.queue.request_bytes(job.id))
    raw, _ = await gateway.queue.stored_request(job.id)
    endpoint = ENDPOINTS.get(job.endpoint)
    if not raw:
        raise NotFound("The request of this job is not kept any more.")
    if endpoint is None or endpoint.body is not BodyKind.JSON:
        raise NotRepeatable("The request of this job is a form, which can't be shown as JSON.")
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        raise NotRepeatable("The request of a response is kept with its history, not as sent.")
    head = {"object": "job.request", "job": job.id, "endpoint": job.endpoint}
    begin, end = json.dumps(head)[:-1].encode() + b', "body": ', b"}"

    async def parts() -> AsyncIterator[bytes]:  # not joined: the body may be large
        yield begin
        yield raw
        yield end

    size = {"content-length": str(len(begin) + len(raw) + len(end))}
    return StreamingResponse(parts(), headers=size, media_type="application/json")


@router.get("/admin/jobs/{job_id}", tags=["operators"], openapi_extra=shows("Job"))
async def get_any_job(job_id: str, gateway: GatewayDep) -> dict[str, Any]:
    """A job of any tenant, without its prompt and its answer."""
    job = await any_job_of(gateway.queue, gateway.settings, job_id)
    (shown,) = await summaries(gateway.queue, [job])
    return shown


@router.get("/admin/jobs/{job_id}/timeline", tags=["operators"])
async def get_any_timeline(job_id: str, gateway: GatewayDep) -> Timeline:
    """The timeline of a job of any tenant."""
    return timeline(await any_job_of(gateway.queue, gateway.settings, job_id))


@router.get("/admin/jobs/{job_id}/why", tags=["operators"])
async def get_any_why(job_id: str, gateway: GatewayDep) -> Why:
    """Why a job of any tenant waits, or why it failed."""
    return await _why(gateway, await any_job_of(gateway.queue, gateway.settings, job_id))


async def _why(gateway: Gateway, job: Job) -> Why:
    fleet, pool = gateway.fleet, job.pool
    (shown,) = await summaries(gateway.queue, [job])
    serving = [worker for worker in fleet.workers_of(pool) if worker.state.serving]
    situation = PoolSituation(
        running=sum(worker.running for worker in serving),
        slots=sum(worker.slots for worker in serving),
        workers=len(serving),
        paused=fleet.switches_of(pool).paused,
        wait_reason=fleet.wait_reason(pool),
    )
    (place,) = await places(gateway.queue, [job])
    waiting = Waiting()
    if place is not None:
        wait_s = fleet.wait_estimate(job.pool, place.position).wait_s
        waiting = Waiting(place.position, place.tenants, wait_s)
    message = (shown["error"] or {}).get("message", "")
    return explain(job, situation, waiting, message, fleet.now_s())
