"""Which changes a job's request and answer need on their way through the engine."""

from __future__ import annotations

from shared.api.endpoint import Endpoint, StreamFormat
from shared.job.job import LeasedJob
from worker.core.answer_edit import AnswerEdit
from worker.core.response_edit import ResponseEdit, with_response_id
from worker.core.service_tier import TierEdit, requested_tier


def engine_body(job: LeasedJob, endpoint: Endpoint) -> bytes:
    """The body for the engine."""
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        return with_response_id(job.body, job.id)
    return job.body


def answer_edit(job: LeasedJob, endpoint: Endpoint | None) -> AnswerEdit | None:
    """What is changed in the engine's answer; None: nothing."""
    if endpoint is None:
        return None
    tier = requested_tier(job.body) if endpoint.policy.service_tier else ""
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        return ResponseEdit(job.id, job.body, tier)
    return TierEdit(tier) if tier else None
