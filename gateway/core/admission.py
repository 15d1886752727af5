"""Admission: what the gateway checks in a request before it queues it, called by `call.py`.

Everything else about a body is for vLLM to check, on the worker, so that its
error messages reach the client unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.core.answer_size import most_output
from gateway.core.call_options import CallHeaders, call_headers
from gateway.core.endpoint_step import Prepared
from gateway.core.fleet_view import FleetView
from gateway.core.incoming import Incoming
from gateway.core.prompt_limits import PromptSize, check_input, check_prompt_size, prompt_size
from gateway.gateway_settings import GatewaySettings
from gateway.http.route_scopes import check_scope
from gateway.http.wrong_fields import sent
from shared.api.endpoint import Endpoint, ModelField
from shared.api.field_policy import check_fields, check_permission
from shared.fleet.registry import ModelInfo
from shared.job.errors import BadRequest, IntakeStopped, ModelNotFound
from shared.job.rules import DEFAULT, FLEX, PRIORITY
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope

_LANE_OF_TIER = {
    None: DEFAULT,
    "auto": DEFAULT,
    "default": DEFAULT,
    "flex": FLEX,
    "priority": PRIORITY,
}


_OF_STORE = "flotilla"
"""The member of a body in which the job store keeps what it is to know of a response
(shared/job/responses.py): a client that sets it could name responses of another tenant."""


class CheckedRequest(NamedTuple):
    """The parts of a checked body that the gateway needs. The body itself may be large."""

    model: str
    """Empty: the fleet's default model."""
    stream: bool
    lane: str
    """Selected by OpenAI's `service_tier`."""
    prompt: PromptSize
    restricted: tuple[str, ...] = ()
    """Fields that need the operator's permission, as in field_policy.py."""
    prepared: Prepared | None = None
    """What the endpoint's API has read in the body, if it adds a step (endpoint_step.py)."""
    start: str = ""
    """As in prompt_prefixes.py, where that decides about the job's shard; else empty."""
    output: int | None = None
    """The tokens that it allows its answer; None: it does not say."""


def check_request(
    endpoint: Endpoint, fields: Mapping[str, Any], settings: GatewaySettings
) -> CheckedRequest:
    """Check the fields of a body against the endpoint's row of the table. Raises BadRequest."""
    policy = endpoint.policy
    if _OF_STORE in fields:
        raise BadRequest(f"`{_OF_STORE}` is no field of a request.", _OF_STORE)
    required = endpoint.model is ModelField.REQUIRED
    model = fields.get("model")
    model = "" if model is None else model
    if not isinstance(model, str) or (required and not model):
        found = sent(model) if model else "missing"
        raise BadRequest(
            f"`model` must be the name of a model, and is {found}; GET /v1/models lists them.",
            "model",
        )
    stream = fields.get("stream") if endpoint.stream else None
    if not (stream is None or isinstance(stream, bool)):  # 1 is equal to True
        raise BadRequest(f"`stream` must be true or false, not {sent(stream)}.", "stream")
    lane = lane_of(fields) if policy.service_tier else DEFAULT
    check_input(policy, fields, settings)
    restricted = check_fields(fields, settings.max_choices)
    size = prompt_size(policy.input, fields)
    return CheckedRequest(model, stream is True, lane, size, restricted, output=most_output(fields))


def lane_of(fields: Mapping[str, Any]) -> str:
    """The lane for OpenAI's `service_tier`. Raises BadRequest if the tier is unknown."""
    tier = fields.get("service_tier")
    if not isinstance(tier, str | None) or tier not in _LANE_OF_TIER:
        known = ", ".join(name for name in _LANE_OF_TIER if name)
        raise BadRequest(
            f"`service_tier` must be one of: {known}; not {sent(tier)}.", "service_tier"
        )
    return _LANE_OF_TIER[tier]


def check_lane(key: ApiKey, lane: str) -> None:
    """Raise MissingScope if this key may not use the lane. Only a job that names it is refused: a
    call's `service_tier` selects DEFAULT then, as `granted` says."""
    if lane == PRIORITY:
        check_scope(key, Scope.PRIORITY)


def granted(request: CheckedRequest, key: ApiKey) -> CheckedRequest:
    """The request in a lane that this key may use."""
    if request.lane == PRIORITY and Scope.PRIORITY not in key.scopes:
        return request._replace(lane=DEFAULT)
    return request


def check_intake(fleet: FleetView, pool: str) -> None:
    """Raise IntakeStopped if an operator has stopped this pool's intake."""
    if fleet.switches and fleet.switches_of(pool).intake_stopped:
        raise IntakeStopped(
            f"An operator has stopped the intake of the pool {pool}: no new requests are "
            "accepted now; try again later."
        )


def admit_tenant(incoming: Incoming) -> CallHeaders:
    """The headers of a tenant's request for a job. Raises BadRequest.

    Called once for each, after the body and before the model.
    """
    return call_headers(incoming.scope["headers"])


def check_model(key: ApiKey, *names: str) -> None:
    """Raise ModelNotFound if this key may not use the model that has these names.

    The answer is the same whether there is such a model.
    """
    if not key.may_use(*names):
        raise ModelNotFound(
            f"The model {names[0][:100]!r} does not exist, or your API key may not use it; "
            "GET /v1/models lists those that it may use."
        )


async def admit(
    fleet: FleetView, request: CheckedRequest, version: str = "", key: ApiKey | None = None
) -> ModelInfo:
    """The model of a request that may be queued. `version`: of the model; empty: any. `key`: whose
    models it may be; None: any.

    Raises ModelNotFound, NoWorker, IntakeStopped, BadRequest, and StoreError.
    """
    if key is not None and request.model:
        check_model(key, request.model)
    model = await fleet.model(request.model, version)
    if key is not None and not request.model:
        check_model(key, model.name, model.served_name)
    check_intake(fleet, model.pool)
    if request.restricted:
        check_permission(request.restricted, fleet.allowed_fields(model.pool))
    check_prompt_size(request.prompt, model.card)
    return model
