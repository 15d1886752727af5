"""The spans of attempts whose workers were lost: those wrote none, so others do."""

from __future__ import annotations

from itertools import takewhile

from shared.job.job import Attempt, Job
from shared.job.trace_context import SpanRef
from shared.platform import tracing

LOST = "worker_lost"
"""The outcome of an attempt whose worker was lost (scripts/common/requeue.lua)."""


def write_lost_attempts(
    job: Job, parent: SpanRef, generation: int, behind_s: float
) -> float | None:
    """Write the lost attempts right before lease number `generation`, and their time in the queue.

    Of attempts before those, others have written the spans. `behind_s`: what to add to Redis' clock
    to get this process' one. Returns when the last attempt before had ended; None if there was none.
    """  # noqa: E501, RUF100
    before = job.attempts[: generation - 1]
    lost = len(list(takewhile(lambda attempt: attempt.outcome == LOST, reversed(before))))
    for number in range(len(before) - lost, len(before)):
        queued_at = before[number - 1].ended_at if number else job.created_at
        _write(job, parent, number + 1, queued_at or job.created_at, before[number], behind_s)
    last_end = before[-1].ended_at if before else None
    return None if last_end is None else last_end + behind_s


def _write(
    job: Job, parent: SpanRef, generation: int, queued_at: float, attempt: Attempt, behind_s: float
) -> None:
    ids: tracing.Attributes = {
        tracing.JOB: job.id,
        tracing.ATTEMPT: generation,
        tracing.WORKER: attempt.worker,
    }
    outcome: tracing.Attributes = {
        tracing.OUTCOME: attempt.outcome,
        tracing.LOG_ENTRIES: attempt.entries or 0,
    }
    began_at, ended_at = attempt.started_at + behind_s, (attempt.ended_at or 0.0) + behind_s
    tracing.write("queue", parent.child(), parent, (queued_at + behind_s, began_at), ids)
    ref = parent.attempt(job.id, generation)
    tracing.write("attempt", ref, parent, (began_at, ended_at), {**ids, **outcome}, LOST)
