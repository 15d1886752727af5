"""Routes of jobs: submit now, fetch the answer later. A call of an endpoint is a job, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response, StreamingResponse

from gateway.apis.jobs import bulk, job_details, retry
from gateway.apis.jobs.accepted_job import accepted
from gateway.apis.jobs.job_schemas import JOB_SCHEMAS
from gateway.apis.jobs.job_stream import STREAM
from gateway.core.answer import whole_answer
from gateway.core.call import new_call
from gateway.core.call_options import MAX_DEADLINE_S
from gateway.core.context import Gateway, GatewayDep, KeyDep, TenantDep
from gateway.core.incoming import Incoming
from gateway.core.job_events import END_ID, EventPosition, events, number_of_end
from gateway.core.job_filter import parse_filter, tenants_of
from gateway.core.job_lookup import own_or_any_job
from gateway.core.job_object import summaries
from gateway.core.job_search import search
from gateway.core.new_call import JobOptions, Wrapped
from gateway.core.on_disconnect import keep_s
from gateway.core.reader import ReadMode
from gateway.core.send_body import BodyResponse
from gateway.description.api import Api
from gateway.description.endpoint_route import ANSWER_ERRORS, CALL_ERRORS, CALL_HEADERS
from gateway.description.schema import Schema, ref, shows, takes
from gateway.http import server_events as sse
from gateway.http.body import raw_member
from gateway.http.query import known_only
from gateway.http.route_scopes import check_scope
from gateway.http.wrong_fields import sent, wrong_field
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest, JobFailed
from shared.job.job import Job
from shared.job.rules import CLIENT_LANES
from shared.job.states import JobState
from shared.store.answers import chunks_of
from shared.store.queue import Queue
from shared.store.views import PLACE, Place
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[known_only])

# `?wait` reads the job so often: its end comes as a message, its start does not.
_POLL_S = 1.0
_SSE_HEADERS = {name.decode(): value.decode() for name, value in sse.HEADERS}
_CHUNKS_BYTES = 1 << 16
"""Parts of an answer are joined until they have so many bytes."""
_MAX_SCAN = 1000
"""Jobs that one page of a filtered list examines; the cursor continues from there."""


_JSON_ENDPOINTS = [row.path for row in ENDPOINTS.values() if row.body is BodyKind.JSON]
_FORM_ENDPOINTS = [row.path for row in ENDPOINTS.values() if row.body is BodyKind.MULTIPART]
"""A form can't be a member of a JSON object: it is the body, and the query names the endpoint."""

Deadline = Annotated[float | None, Field(ge=0.001, le=MAX_DEADLINE_S)]


class JobRequest(BaseModel):
    """The body of POST /jobs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    endpoint: str = "/v1/chat/completions"
    body: dict[str, Any]
    lane: str | None = None
    on_disconnect: str | None = None
    deadline_s: Deadline = None
    queue_deadline_s: Deadline = None
    run_deadline_s: Deadline = None
    max_wait_s: Deadline = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default_factory=dict, max_length=16)
    )
    webhooks: Annotated[list[str], Field(max_length=MOST_ENDPOINTS)] = Field(default_factory=list)


def _job_request() -> Schema:
    schema = JobRequest.model_json_schema()
    schema["properties"]["lane"] = {"enum": [*CLIENT_LANES, None], "default": None}
    schema["properties"]["body"] = ref("ChatRequest")
    return schema


def _job_body() -> Schema:
    described = takes(_job_request())
    forms = [ref(ENDPOINTS[path].request_schema) for path in _FORM_ENDPOINTS]
    described["requestBody"]["content"]["multipart/form-data"] = {"schema": {"anyOf": forms}}
    return described


@router.post(
    "",
    status_code=202,
    openapi_extra=shows("Job", 202, errors=CALL_ERRORS)
    | _job_body()
    | {"parameters": list(CALL_HEADERS)},
)
async def submit(
    request: Request, gateway: GatewayDep, tenant: TenantDep, endpoint: str = ""
) -> Response:
    """Queue a request of an endpoint. Answers 202 with the job and `Location`.

    `endpoint`: one whose body is a form with a file, which is the body of this request then.
    """
    source = _form_endpoint(endpoint) if endpoint else _call_in
    call = await new_call(gateway, Incoming.of(request), source, attached=False)
    return await accepted(gateway, call)


@router.get("", openapi_extra=shows("JobList"))
async def list_jobs(
    request: Request,
    gateway: GatewayDep,
    tenant: TenantDep,
    words: Annotated[str, Query(alias="filter", max_length=1000)] = "",
    state: JobState | None = None,
    model: str | None = None,
    error: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(pattern=PLACE)] = None,
) -> dict[str, Any]:
    """The tenant's jobs, newest first. `cursor=next_cursor` continues while `has_more` is true.

    `filter` is words like `state:failed model:qwen since:1h worker:w-1 error:worker_lost`; with
    `tenant:` (an operator's key) it lists jobs of other tenants, with `tenant:*` of all.
    """
    job_filter = parse_filter(words, gateway.fleet.now_s()).also(state, model, error)
    if job_filter.tenants:
        check_scope(request.state.key, Scope.ADMIN_READ)
    tenants = tenants_of(job_filter, tenant, [each.name for each in gateway.keys.tenants])
    before = Place.parse(cursor) if cursor else None
    found = await search(gateway.queue, tenants, job_filter, before, limit, _MAX_SCAN)
    return {
        "object": "list",
        "data": await summaries(gateway.queue, found.jobs),
        "has_more": found.cursor is not None,
        "next_cursor": None if found.cursor is None else str(found.cursor),
    }


@router.get("/{job_id}", response_model=None, openapi_extra=shows("Job"))
async def get_job(
    job_id: str,
    gateway: GatewayDep,
    key: KeyDep,
    wait: Annotated[float, Query(ge=0, le=60)] = 0,
) -> Response:
    """The job now; with `wait`, when its state has changed, or after so many seconds."""
    job = await _job(gateway, key, job_id)
    if wait and not job.state.terminal:
        job = await _changed(gateway, key, job, wait)
    body, headers = await gateway.streams.job_object(job)
    headers |= _job_header(job) | ({} if job.state.terminal else {"retry-after": "1"})
    return BodyResponse(body, headers=headers)


@router.get("/{job_id}/result", openapi_extra=shows("Job", 202, errors=ANSWER_ERRORS))
async def get_result(job_id: str, gateway: GatewayDep, key: KeyDep) -> Response:
    """The answer that the endpoint would have given; 202 with the job until there is one."""
    job = await _job(gateway, key, job_id)
    if not job.state.terminal:
        body, headers = await gateway.streams.job_object(job)
        return BodyResponse(body, 202, headers | _job_header(job) | {"retry-after": "1"})
    try:
        whole = whole_answer(gateway.queue, job)
    except JobFailed as failure:
        failure.final = True  # it stays so
        raise
    if whole is not None:
        headers = {**job.headers, **_job_header(job), "content-type": whole.content_type}
        if whole.status >= 400:
            headers["x-should-retry"] = "false"
        return BodyResponse(whole.body, whole.status, headers)
    chunks = _chunks(gateway.queue, job)
    first = await anext(chunks)  # a short log's errors have their own status

    async def all_chunks() -> AsyncIterator[bytes]:
        yield first
        async for data in chunks:
            yield data

    return StreamingResponse(all_chunks(), headers=_job_header(job) | _SSE_HEADERS)


async def _chunks(queue: Queue, job: Job) -> AsyncIterator[bytes]:
    """The bytes of an answer that was streamed, in parts; short ones are joined."""
    data = b""
    async for chunks in chunks_of(queue, job):
        data += b"".join(chunks)
        if len(data) > _CHUNKS_BYTES:
            yield data
            data = b""
    yield data


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    openapi_extra=shows("", events=True, errors=ANSWER_ERRORS),
)
async def get_events(
    job_id: str,
    gateway: GatewayDep,
    key: KeyDep,
    last_event_id: Annotated[str, Header(max_length=40)] = "0",
) -> Response:
    """The job's events so far, then live ones, as server-sent events."""
    job = await _job(gateway, key, job_id)
    if last_event_id == END_ID:
        return Response(status_code=204)  # at which an EventSource stops
    after = EventPosition.parse(last_event_id)
    if job.state.terminal:
        last = await number_of_end(gateway.queue, job)
        if last is not None and after.entry > last:
            raise BadRequest(f"Last-Event-ID is after the last event, {last}.")
    headers = _job_header(job) | _SSE_HEADERS
    return StreamingResponse(events(gateway.streams, job, after), headers=headers)


@router.post("/{job_id}/cancel", response_model=None, openapi_extra=shows("Job"))
async def cancel(job_id: str, gateway: GatewayDep, key: KeyDep) -> Response:
    """Cancel the job. Its output so far is kept. A job that has ended stays as it is."""
    await _job(gateway, key, job_id)
    await gateway.queue.cancel(key.tenant, job_id)
    job = await _job(gateway, key, job_id)
    return BodyResponse((await gateway.streams.job_object(job))[0])


def _call_in(raw: bytes, fields: dict[str, Any]) -> Wrapped:
    """The call in the body of POST /jobs. Raises BadRequest."""
    try:
        asked = JobRequest.model_validate(fields)
    except ValidationError as error:
        raise wrong_field(error, ", ".join(JobRequest.model_fields)) from error
    if asked.endpoint not in _JSON_ENDPOINTS:
        known = ", ".join(_JSON_ENDPOINTS)
        raise BadRequest(
            f"`endpoint` must be one of: {known}; not {sent(asked.endpoint)}.", "endpoint"
        )
    if asked.lane is not None and asked.lane not in CLIENT_LANES:
        known = ", ".join(CLIENT_LANES)
        raise BadRequest(f"`lane` must be one of: {known}; not {sent(asked.lane)}.", "lane")
    if asked.on_disconnect is not None:
        keep_s(asked.on_disconnect, "on_disconnect")
    options = JobOptions(
        lane=asked.lane or "",
        on_disconnect=asked.on_disconnect or "",
        deadline_s=asked.deadline_s,
        queue_deadline_s=asked.queue_deadline_s,
        run_deadline_s=asked.run_deadline_s,
        max_wait_s=asked.max_wait_s,
        metadata=asked.metadata,
        webhooks=asked.webhooks,
    )
    return Wrapped(ENDPOINTS[asked.endpoint], asked.body, raw_member(raw, "body"), options)


def _form_endpoint(path: str) -> Endpoint:
    """The endpoint in the query of POST /jobs. Raises BadRequest."""
    if path not in _FORM_ENDPOINTS:
        known = ", ".join(_FORM_ENDPOINTS)
        raise BadRequest(
            f"`endpoint` in the query must be one that takes a form: {known}; not {sent(path)}. "
            "Other endpoints are named in the body.",
            "endpoint",
        )
    return ENDPOINTS[path]


async def _job(gateway: Gateway, key: ApiKey, job_id: str) -> Job:
    return await own_or_any_job(gateway.queue, gateway.settings, key, job_id)


def _job_header(job: Job) -> dict[str, str]:
    return {"x-flotilla-job-id": job.id}


async def _changed(gateway: Gateway, key: ApiKey, job: Job, wait_s: float) -> Job:
    """The job when its state has changed, at the latest after `wait_s` seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    reader = gateway.relay.open(job.id, ReadMode.END)
    try:
        state = job.state
        while job.state is state and (remaining_s := until - loop.time()) > 0:
            await reader.next(min(remaining_s, _POLL_S))
            job = await _job(gateway, key, job.id)
    finally:
        gateway.relay.close(reader, leave=not job.state.terminal)
    return job


API = Api(
    routers=(router, bulk.router, job_details.router, retry.router),
    plain=(STREAM,),
    forms=("/jobs",),
    schemas=JOB_SCHEMAS,
)
