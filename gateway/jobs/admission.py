"""From a request's body to a job: what the gateway looks at before it queues.

Everything else about the body is vLLM's to judge, on the worker, with vLLM's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.context import Gateway
from gateway.jobs.prompt_limits import Longest, check_length, check_messages, longest, sequences
from shared.api.errors import BadRequest
from shared.platform.settings import Settings
from shared.protocol.job import NewJob, new_job_id, shard_in
from shared.protocol.lanes import DEFAULT, FLEX, PRIORITY

_TRIES = 16
_LANE_OF_TIER = {
    None: DEFAULT,
    "auto": DEFAULT,
    "default": DEFAULT,
    "flex": FLEX,
    "priority": PRIORITY,
}


class Asked(NamedTuple):
    """What the gateway looks at in a request's body."""

    model: str
    stream: bool
    lane: str
    """That OpenAI's `service_tier` asks for."""
    prompt: Longest


def asked(fields: Mapping[str, Any], settings: Settings) -> Asked:
    """What a body asks for. Raises BadRequest."""
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise BadRequest("`model` must name a model; GET /v1/models lists them.", "model")
    stream = fields.get("stream", False)
    if not (stream is None or isinstance(stream, bool)):  # 1 is equal to True
        raise BadRequest("`stream` must be true or false.", "stream")
    lane = lane_of(fields)
    sequences(fields, settings.max_sequences)
    check_messages(fields, settings.max_messages)
    return Asked(name, stream is True, lane, longest(fields))


def lane_of(body: Mapping[str, Any]) -> str:
    """The lane that OpenAI's `service_tier` asks for. Raises BadRequest for other tiers."""
    tier = body.get("service_tier")
    if not isinstance(tier, str | None) or tier not in _LANE_OF_TIER:
        known = ", ".join(name for name in _LANE_OF_TIER if name)
        raise BadRequest(f"`service_tier` must be one of: {known}.", "service_tier")
    return _LANE_OF_TIER[tier]


async def admit(
    gateway: Gateway,
    tenant: str,
    endpoint: str,
    body: bytes,
    wanted: Asked,
    *,
    lane: str | None = None,
    attached: bool,
    deadline_s: float | None = None,
    metadata: Mapping[str, str] | None = None,
) -> NewJob:
    """A job for this request, not submitted yet.

    `attached` jobs have a client that waits. Raises BadRequest, ModelNotFound, NoWorker.
    """
    model = await gateway.fleet.model(wanted.model)
    check_length(wanted.prompt, model.card)
    settings = gateway.settings
    return NewJob(
        id=_job_id(gateway),
        tenant=tenant,
        pool=model.pool,
        lane=lane or wanted.lane,
        model=wanted.model,
        endpoint=endpoint,
        body=body,
        stream=wanted.stream,
        ttl_s=settings.stream_ttl_s if attached else settings.result_ttl_s,
        max_attempts=settings.max_attempts,
        gateway=gateway.id if attached else "",
        deadline_s=deadline_s,
        metadata=metadata,
    )


def _job_id(gateway: Gateway) -> str:
    """Of a shard whose Redis is there, as far as a few tries find one."""
    for _ in range(_TRIES):
        job_id = new_job_id(gateway.settings.shards)
        if gateway.relay.is_subscribed(shard_in(job_id)):
            break
    return job_id
