"""The spans of one run of a traced job: queue, attempt, prefill, decode.

They are written when the run has ended, and with them what no other worker has written: the
attempts just before this one whose workers were lost.
"""

from __future__ import annotations

import contextlib
from time import monotonic, time

from shared.job.job import LeasedJob
from shared.job.states import JobState
from shared.job.trace_context import SpanRef, parse
from shared.platform import tracing
from shared.store.interface import Store, StoreError
from shared.store.redis.lost_attempts import write_lost_attempts
from worker.core.output_buffer import OutputBuffer

REVOKED = "revoked"
"""The outcome of a run whose job was cancelled, or has expired."""
_FAILED = frozenset({"engine_died", "run_failed", "lost"})


class RunTrace:
    """The times of one run. `ref` is the span of its attempt, `parent` that of the request."""

    def __init__(self, job: LeasedJob, parent: SpanRef) -> None:
        self.ref = parent.attempt(job.id, job.generation)
        self._parent = parent
        self._job = job
        self._leased_at = time()
        self._leased = monotonic()
        self._ended_at = 0.0
        self._outcome = ""
        self._error = ""
        self._written_by_next = False

    @classmethod
    def of(cls, job: LeasedJob) -> RunTrace | None:
        """None if the job, or this process, is not traced."""
        traceparent = job.origin.traceparent
        parent = parse(traceparent) if traceparent and tracing.is_on() else None
        return None if parent is None else cls(job, parent)

    def lease_lost(self, state: str) -> None:
        """The job is not this worker's any more; `state` is its state now.

        If another worker has it, or will, that one writes the spans, as for a lost worker.
        """
        self._outcome = state
        self._written_by_next = state not in {JobState.CANCELLED, JobState.EXPIRED, REVOKED}

    def released(self, reason: str) -> None:
        """The worker releases the job; the job's history has this reason."""
        self._outcome = self._outcome or reason

    def ended(self, outcome: str, error: str) -> None:
        """The run has ended. `error`: a code, empty if there is none."""
        self._ended_at = time()
        self._outcome = self._outcome or outcome
        self._error = error or (self._outcome if self._outcome in _FAILED else "")

    async def write(self, buffer: OutputBuffer, worker: str, queue: Store) -> None:
        """Write the spans. For a job that was leased before, its record is read."""
        if self._written_by_next:
            return
        job = self._job
        queued_at: float | None = self._leased_at - job.waited_s
        if job.generation > 1:
            queued_at = None
            with contextlib.suppress(StoreError):
                queued_at = await self._write_earlier(queue)
        ids: tracing.Attributes = {
            tracing.JOB: job.id,
            tracing.ATTEMPT: job.generation,
            tracing.WORKER: worker,
        }
        if queued_at is not None:
            period = (queued_at, self._leased_at)
            tracing.write("queue", self._parent.child(), self._parent, period, ids)
        self._write_attempt(buffer, ids)

    async def _write_earlier(self, queue: Store) -> float | None:
        """Write the lost attempts before this one; returns when the job was queued last."""
        record = await queue.get(self._job.id)
        if record is None:
            return None
        behind_s = self._leased_at - (record.created_at + self._job.waited_s)
        return write_lost_attempts(record, self._parent, self._job.generation, behind_s)

    def _write_attempt(self, buffer: OutputBuffer, ids: tracing.Attributes) -> None:
        outcome: tracing.Attributes = {
            tracing.OUTCOME: self._outcome,
            tracing.INPUT_TOKENS: buffer.prompt_tokens,
            tracing.OUTPUT_TOKENS: buffer.completion_tokens,
        }
        whole = (self._leased_at, self._ended_at)
        tracing.write("attempt", self.ref, self._parent, whole, {**ids, **outcome}, self._error)
        first, ended_at = buffer.first_output_at, self._ended_at
        prefilled_at = ended_at if first is None else self._leased_at + first - self._leased
        tracing.write("prefill", self.ref.child(), self.ref, (self._leased_at, prefilled_at))
        if first is not None:
            tracing.write("decode", self.ref.child(), self.ref, (prefilled_at, ended_at))
