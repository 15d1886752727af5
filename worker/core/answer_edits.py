"""Which changes a job's request and answer need on their way through the engine."""

from __future__ import annotations

from typing import Protocol

from shared.api.endpoint import Endpoint, StreamFormat
from shared.store.queue import HeldJob
from worker.core.response_edit import ResponseEdit, with_response_id
from worker.core.service_tier import TierEdit, requested_tier


class AnswerEdit(Protocol):
    """The changes in the answer of one job. Both methods return what they do not change as is."""

    def chunk(self, data: bytes) -> bytes:
        """Server-sent events of a stream."""

    def whole(self, body: bytes) -> bytes:
        """An answer in one piece, which is no error."""


def engine_body(job: HeldJob, endpoint: Endpoint) -> bytes:
    """The body for the engine."""
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        return with_response_id(job.body, job.id)
    return job.body


def answer_edit(job: HeldJob, endpoint: Endpoint | None) -> AnswerEdit | None:
    """What is changed in the engine's answer; None: nothing."""
    if endpoint is None:
        return None
    tier = requested_tier(job.body) if endpoint.policy.service_tier else ""
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        return ResponseEdit(job.id, job.body, tier)
    return TierEdit(tier) if tier else None
