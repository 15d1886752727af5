"""The one way from a request's bytes to a job: endpoints, POST /jobs, retries, predictions, and
the lines of batches.

The order is the same for all of them:

1. the body: its size, then its syntax (`gateway/http/body.py`, `form.py`);
2. its limits and shapes, and what the API of the endpoint reads in it (`_check`);
3. the tenant, and the headers of its call (`admission.admit_tenant`);
4. the model, its pool's intake, the fields that need permission, the length of the prompt
   (`admission.admit`);
5. the job's options: a header goes before a field of POST /jobs, that before the pool's deadlines;
6. the idempotency key;
7. Redis' memory, and its deadlines (`job_admission.py`);
8. the right to its lane, the limits of the key and of its tenant (`rate_limiter.py`);
9. when it is submitted: full lanes and the tenant's quotas (`submitter.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive, Scope

from gateway.core.admission import (
    CheckedRequest,
    admit,
    admit_tenant,
    check_intake,
    check_lane,
    check_model,
    check_request,
    granted,
)
from gateway.core.call_options import CallHeaders
from gateway.core.context import CallContext, Gateway
from gateway.core.incoming import Incoming
from gateway.core.lax_values import with_plain_values
from gateway.core.new_call import NO_OPTIONS, JobOptions, NewCall, Unwrap, Wrapped
from gateway.core.prompt_prefixes import conversation_start, prompt_prefixes
from gateway.core.rate_limiter import RateLimiter
from gateway.gateway_settings import GatewaySettings
from gateway.http.body import (
    SMALL_BYTES,
    BodyLimit,
    Limits,
    check_size,
    in_thread,
    parse_json,
    read_body,
)
from gateway.http.form import parse_form, without_boundary
from gateway.http.held_bytes import BODIES
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest, NotRepeatable
from shared.job.job import IdempotencyKey, Job, NewJob
from shared.job.rules import FLEX, LEAST_BYTES
from shared.job.states import JobState
from shared.store.queue import JoinedJob
from shared.store.webhooks import WebhookRecords
from shared.tenants.rate_limits import Limited, estimate
from shared.webhooks.webhook_delivery import notify_of

T = TypeVar("T")

REPEATABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
_INVOCATIONS = "/invocations"
_MAX_OBJECTS = 30_000
"""JSON objects, lists and strings in one body: vLLM reads so many in 0.1 to 0.2 s, in which its
other answers wait."""
_HOSTING_HEADERS = (b"x-amzn-sagemaker-adapter-identifier", b"x-amzn-sagemaker-session-id")
"""With which vLLM's hosting package changes a call of /invocations."""


class _Read(NamedTuple):
    endpoint: Endpoint
    request: CheckedRequest
    body: bytes
    options: JobOptions
    sent: bytes
    """The body as the client has sent it."""


async def new_call(
    gateway: Gateway, incoming: Incoming, source: Endpoint | Unwrap, *, attached: bool = True
) -> NewCall:
    """The job of a request. `source`: the endpoint whose body it has, or the function to find it.

    `attached`: its client waits for the answer. Raises what each step in the order above raises.
    """
    call, output = await _checked_call(gateway, incoming, source, attached=attached)
    check_lane(incoming.key, call.job.lane)
    limits = gateway.keys.limits_of(incoming.key)
    return await _limited(gateway, call, limits, output) if limits else call


async def repeated_call(gateway: Gateway, incoming: Incoming, job: Job) -> NewCall:
    """The call that repeats a job for its tenant. Raises as `new_call` and `repeat`."""
    new = await gateway.admission.admit(await repeat(gateway, job, incoming=incoming))
    check_lane(incoming.key, new.lane)
    call = NewCall(new, None, keyed=new.idempotency is not None)
    limits = gateway.keys.limits_of(incoming.key)
    return await _limited(gateway, call, limits, None) if limits else call


async def _limited(
    gateway: Gateway, call: NewCall, limits: tuple[Limited, ...], output: int | None
) -> NewCall:
    """The call, taken from these limits. `output`: as in CheckedRequest."""
    if call.joined:
        return call
    job = call.job
    holder = job.id if job.gateway and not call.background else ""
    taken = await gateway.of(RateLimiter).take(limits, holder, _tokens(gateway, job, output))
    return call._replace(job=job._replace(reserved=taken.reserved), taken=taken)


def _tokens(gateway: CallContext, job: NewJob, output: int | None) -> int:
    """What a job is expected to use, as its limits count it. `output`: as in CheckedRequest."""
    model = gateway.fleet.models.get(job.model)
    context = (model.card.get("max_model_len") if model else None) or 0
    generates = ENDPOINTS[job.endpoint].stream is not None
    return estimate(len(job.body), context, output if generates else 0)


async def _checked_call(
    gateway: Gateway, incoming: Incoming, source: Endpoint | Unwrap, *, attached: bool
) -> tuple[NewCall, int | None]:
    """The call, and what its request allows its answer, as in CheckedRequest."""
    endpoint, request, body, options, raw = await _read(gateway, incoming, source)
    sent, request = admit_tenant(incoming), granted(request, incoming.key)
    model = await admit(gateway.fleet, request, sent.model_version, incoming.key)
    on_disconnect = sent.on_disconnect or options.on_disconnect
    prepared = request.prepared
    if options.webhooks:
        await WebhookRecords(gateway.queue).check_ids(incoming.tenant, options.webhooks, "webhooks")
    key = None
    if sent.idempotency_key:
        same = raw
        if endpoint.body is BodyKind.MULTIPART:  # POST /jobs has its endpoint in the query
            same = endpoint.path.encode() + without_boundary(raw)
        conversation = prepared.conversation if prepared else ""
        key = IdempotencyKey.of(
            incoming.tenant, incoming.scope["path"], sent.idempotency_key, same, conversation
        )
    of = incoming.tenant, model, request, body, on_disconnect, key
    job = gateway.factory.new(endpoint, *of, attached=attached)
    job = _with_options(job, sent, options).sent_with(incoming.key.id, incoming.request_id)
    job = await gateway.admission.admit(job)
    if attached and prepared and prepared.background:
        job = job._replace(notify=notify_of("response"))
    elif not attached or on_disconnect == "keep":  # else its client waits for the end
        job = job._replace(notify=notify_of("job", options.webhooks))
    if prepared is None:
        return NewCall(await _with_prefixes(gateway, job), None, bool(key)), request.output
    step = gateway.steps[endpoint.path]
    made, background = await step.complete(job, prepared), step if prepared.background else None
    if isinstance(made, JoinedJob):
        return NewCall(job, background, keyed=True, joined=made.id), None
    if prepared.has_history:
        # The limits hold for what the worker gets, not only for what was sent last.
        limits, whole = _limits(gateway.settings), made.body
        if len(whole) > SMALL_BYTES:
            BODIES.hold(incoming.scope, len(whole))
        await in_thread(lambda: check_size(whole, limits))
    made = await _with_prefixes(gateway, made)
    return NewCall(made, background, bool(key)), request.output


async def line_job(
    context: CallContext, tenant: str, endpoint: Endpoint, body: bytes
) -> tuple[NewJob, int]:
    """The job of a batch's line, which no client waits for, and the tokens that it is expected to
    use.

    Raises BadRequest, BodyTooLarge, ModelNotFound, NoWorker, IntakeStopped, and StoreError.
    """
    read = await parse_json(
        body,
        _limits(context.settings),
        lambda fields: _check(context, Wrapped(endpoint, fields, body), body),
    )
    request = read.request
    if request.stream:
        raise BadRequest("Answers of a batch can't be streamed.", "stream")
    model = await admit(context.fleet, request)
    job = context.factory.new(endpoint, tenant, model, request, read.body, attached=False)
    # It waits for as long as its batch, which ends it: these of its pool are for clients that wait.
    job = job._replace(lane=FLEX, deadline_s=None, queue_deadline_s=None)
    return await _with_prefixes(context, job), _tokens(context, job, request.output)


async def repeat(
    gateway: Gateway, job: Job, new_id: str = "", incoming: Incoming | None = None
) -> NewJob:
    """A new job with the request of one that ended without an answer, which stays as it is.

    `new_id`: empty for any. `incoming`: the tenant's request for it, whose headers count; None: an
    operator's. Raises NotRepeatable, IntakeStopped, BadRequest, and StoreError.
    """
    if job.state not in REPEATABLE:
        raise NotRepeatable(
            f"This job is {job.state}; only a failed, cancelled or expired one can be repeated."
        )
    sent, key, api_key, request_id = CallHeaders(), None, job.key, None
    if incoming is not None:
        sent, api_key, request_id = admit_tenant(incoming), incoming.key.id, incoming.request_id
        model = gateway.fleet.models.get(job.model)
        check_model(incoming.key, job.model, model.served_name if model else "")
        check_intake(gateway.fleet, job.pool)
        if name := sent.idempotency_key:
            key = IdempotencyKey.of(incoming.tenant, incoming.scope["path"], name, b"")
    body, _ = await gateway.queue.stored_request(job.id)
    if not body:
        raise NotRepeatable("The request of this job is not kept any more; send it again.")
    new = gateway.factory.repeated(job, body, new_id, key, sent.on_disconnect)
    new = _with_options(new, sent, NO_OPTIONS).sent_with(api_key, request_id)
    new = await gateway.admission.admit(new)
    return await _with_prefixes(gateway, new)


async def read_object(
    settings: GatewaySettings,
    scope: Scope,
    receive: Receive,
    use: Callable[[dict[str, Any]], T],
    max_bytes: int | None = None,
) -> T:
    """The result of `use` for the JSON object in a body that makes no job.

    Raises as read_body, parse_json and `use`.
    """
    limit = _body_limit(settings)
    if max_bytes is not None:
        limit = limit._replace(max_bytes=max_bytes, setting="")
    raw = await read_body(scope, receive, BodyKind.JSON, limit)
    return await parse_json(raw, _limits(settings), use)


async def _read(gateway: Gateway, incoming: Incoming, source: Endpoint | Unwrap) -> _Read:
    """The body of a request, and what the gateway needs of it."""
    scope, receive = incoming.scope, incoming.receive
    settings = gateway.settings
    if not isinstance(source, Endpoint):
        raw = await read_body(scope, receive, BodyKind.JSON, _body_limit(settings))
        return await parse_json(
            raw, _limits(settings), lambda fields: _check(gateway, source(raw, fields), raw)
        )
    if source.path == _INVOCATIONS:
        _refuse_hosting_headers(scope)
    with_file = source.body is BodyKind.MULTIPART
    raw = await read_body(scope, receive, source.body, _body_limit(settings, with_file))

    def check(fields: dict[str, Any]) -> _Read:
        return _check(gateway, Wrapped(source, fields, raw), raw)

    if with_file:
        return await parse_form(raw, scope, check)
    return await parse_json(raw, _limits(settings), check)


def _refuse_hosting_headers(scope: Scope) -> None:
    """Raises BadRequest if there is one: without it the client would get another answer."""
    for name, _ in scope["headers"]:
        if name in _HOSTING_HEADERS:
            header = name.decode()
            raise BadRequest(f"The header `{header}` has no meaning here; leave it out.", header)


def _check(gateway: CallContext, call: Wrapped, raw: bytes) -> _Read:
    """The checks of a body that was parsed. The fields are not kept: they may be large."""
    call = with_plain_values(call)
    endpoint, fields = call.endpoint, call.fields
    request = check_request(endpoint, fields, gateway.settings)
    step = gateway.steps.get(endpoint.path)
    if step is not None:
        request = request._replace(prepared=step.prepare(fields))
    if gateway.settings.shards > 1 and gateway.settings.placement.window:
        start = conversation_start(endpoint.policy.input, fields)
        request = request._replace(start=start if len(call.body) >= LEAST_BYTES else "")
    return _Read(endpoint, request, call.body, call.options, raw)


async def _with_prefixes(gateway: CallContext, job: NewJob) -> NewJob:
    """The job with the hashes of its prompt's prefixes."""
    if len(job.body) < LEAST_BYTES or gateway.settings.placement.window == 0:
        return job
    endpoint = ENDPOINTS.get(job.endpoint)
    if endpoint is None:
        return job
    kind, whose, model = endpoint.policy.input, job.tenant, gateway.fleet.models.get(job.model)
    if model is not None and model.card.get("parent"):
        whose += f" {job.model}"  # an adapter computes something else of the same prompt
    if len(job.body) <= SMALL_BYTES:
        return job._replace(prefixes=prompt_prefixes(kind, job.body, whose))
    found = await in_thread(lambda: prompt_prefixes(kind, job.body, whose))
    return job._replace(prefixes=found)


def _with_options(job: NewJob, sent: CallHeaders, options: JobOptions) -> NewJob:
    """The job with the options of its request in place of its pool's deadlines."""
    limits_s = (sent.queue_deadline_s, sent.run_deadline_s, sent.max_wait_s)
    if options is NO_OPTIONS and not any(limits_s):
        return job
    return job._replace(
        lane=options.lane or job.lane,
        deadline_s=options.deadline_s or job.deadline_s,
        queue_deadline_s=(
            sent.queue_deadline_s or options.queue_deadline_s or job.queue_deadline_s
        ),
        run_deadline_s=sent.run_deadline_s or options.run_deadline_s or job.run_deadline_s,
        max_wait_s=sent.max_wait_s or options.max_wait_s or job.max_wait_s,
        metadata=job.metadata if options.metadata is None else options.metadata,
        retried_from=options.retried_from or job.retried_from,
    )


def _body_limit(settings: GatewaySettings, with_file: bool = False) -> BodyLimit:
    if with_file:
        most_bytes, setting = settings.max_upload_bytes, "FLOTILLA_MAX_UPLOAD_BYTES"
    else:
        most_bytes, setting = settings.max_body_bytes, "FLOTILLA_MAX_BODY_BYTES"
    return BodyLimit(most_bytes, setting, settings.body_timeout_s, settings.max_held_body_bytes)


def _limits(settings: GatewaySettings) -> Limits:
    return Limits(settings.max_body_values, _MAX_OBJECTS)
