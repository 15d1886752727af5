"""A new request to an endpoint: read, checked, admitted, and made a job that is not queued yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import Receive, Scope

from gateway.apis.context import Gateway
from gateway.core.admission import CheckedRequest, admit, check_request
from gateway.core.response_request import ResponseRequest
from gateway.gateway_settings import GatewaySettings
from gateway.http.body import Limits, check_size, in_thread, parse_json, read_body
from gateway.http.call_headers import call_headers
from gateway.http.form import parse_form, without_boundary
from gateway.http.prefer import Prefer
from gateway.http.refused_routes import refuse_hosting_headers
from shared.api.endpoint import BodyKind, Endpoint
from shared.job.idempotency import IdempotencyKey
from shared.job.job import NewJob
from shared.job.replies import JoinedJob

_INVOCATIONS = "/invocations"


class NewCall(NamedTuple):
    """A request's job, and how the request is to be answered."""

    job: NewJob
    """Not to be submitted if the call has `joined` another."""
    prefer: Prefer | None
    background: bool
    """The answer is a response in the background."""
    keyed: bool
    """It has an idempotency key: the queue may have its job already."""
    joined: str = ""
    """The job that an earlier call with this one's key has made, as far as it is known."""


async def new_call(
    gateway: Gateway,
    endpoint: Endpoint,
    scope: Scope,
    receive: Receive,
    tenant: str,
    request_id: bytes | None,
) -> NewCall:
    """Read a tenant's request. Raises as refuse_hosting_headers, read_body, parse_json, parse_form,
    check_request and admit."""
    if endpoint.path == _INVOCATIONS:
        refuse_hosting_headers(scope["headers"])
    body, request = await _read(endpoint, scope, receive, gateway.settings)
    sent = call_headers(scope["headers"])
    model = await admit(gateway.fleet, request, sent.model_version)
    key = sent.idempotency_key and IdempotencyKey.of(
        tenant,
        scope["path"],
        sent.idempotency_key,
        without_boundary(body) if endpoint.body is BodyKind.MULTIPART else body,
        conversation_of(request),
    )
    prefer = _applicable(sent.prefer, request)
    on_disconnect = sent.on_disconnect or request.on_disconnect or ("keep" if prefer else "")
    job = gateway.factory.attached(
        endpoint, tenant, model, request, body, on_disconnect, key or None
    )
    if sent.queue_deadline_s or sent.run_deadline_s:
        job = job._replace(
            queue_deadline_s=sent.queue_deadline_s or job.queue_deadline_s,
            run_deadline_s=sent.run_deadline_s or job.run_deadline_s,
        )
    job, response = job.with_request_id(request_id), request.response
    if response is None:
        return NewCall(job, prefer, background=False, keyed=bool(key))
    made, background = await response_job(gateway, job, response), response.options.background
    if isinstance(made, JoinedJob):
        return NewCall(job, prefer, background, keyed=True, joined=made.id)
    return NewCall(made, prefer, background, bool(key))


def conversation_of(request: CheckedRequest) -> str:
    """The conversation that a request continues; empty: none."""
    return request.response.options.conversation if request.response else ""


async def response_job(
    gateway: Gateway, job: NewJob, response: ResponseRequest
) -> NewJob | JoinedJob:
    """The job of a response with all that it continues. Raises as ResponseJobs.complete."""
    made, settings = await gateway.responses.complete(job, response), gateway.settings
    if response.has_history and isinstance(made, NewJob):
        # The limits hold for what the worker gets, not only for what was sent last.
        limits, body = Limits(settings.max_body_values, settings.max_body_objects), made.body
        await in_thread(lambda: check_size(body, limits))
    return made


async def _read(
    endpoint: Endpoint, scope: Scope, receive: Receive, settings: GatewaySettings
) -> tuple[bytes, CheckedRequest]:
    """The body of a request, and what the gateway needs of it. Raises as read_body, parse_json,
    parse_form and check_request."""

    def check(fields: Mapping[str, Any]) -> CheckedRequest:
        return check_request(endpoint, fields, settings)

    with_file = endpoint.body is BodyKind.MULTIPART
    most_bytes = settings.max_upload_bytes if with_file else settings.max_body_bytes
    body = await read_body(scope, receive, endpoint.body, most_bytes, settings.body_timeout_s)
    if with_file:
        return body, await parse_form(body, scope, check)
    limits = Limits(settings.max_body_values, settings.max_body_objects)
    return body, await parse_json(body, limits, check)


def _applicable(prefer: Prefer | None, request: CheckedRequest) -> Prefer | None:
    """The preference, unless the answer begins at once anyway: a stream, a background response."""
    if prefer is None or (request.response is not None and request.response.options.background):
        return None
    return None if request.stream and not prefer.respond_async else prefer
