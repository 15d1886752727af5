"""The spans of one run of a traced job: queue, attempt, prefill, decode; written at its end."""

from __future__ import annotations

from time import monotonic, time

from shared.job.states import JobState
from shared.job.trace_context import SpanRef, parse
from shared.platform import tracing
from shared.store.queue import HeldJob
from worker.core.output import Output
from worker.core.publish import REVOKED

_FAILED = frozenset({"engine_died", "run_failed", "lost"})


class RunTrace:
    """The times of one run. `ref` is the span of its attempt, `parent` that of the request."""

    def __init__(self, job: HeldJob, parent: SpanRef) -> None:
        self.ref = parent.attempt(job.id, job.attempt)
        self._parent = parent
        self._job = job
        self._leased_at = time()
        self._leased = monotonic()
        self._ended_at = 0.0
        self._outcome = ""
        self._error = ""

    @classmethod
    def of(cls, job: HeldJob) -> RunTrace | None:
        """None if the job, or this process, is not traced."""
        traceparent = job.origin.traceparent
        parent = parse(traceparent) if traceparent and tracing.is_on() else None
        return None if parent is None else cls(job, parent)

    def lease_lost(self, state: str) -> None:
        """The job is not this worker's any more; `state` is its state now."""
        ended = {JobState.CANCELLED, JobState.EXPIRED, REVOKED}
        self._outcome = state if state in ended else "lost"

    def released(self, reason: str) -> None:
        """The worker releases the job; the job's history has this reason."""
        self._outcome = self._outcome or reason

    def ended(self, outcome: str, error: str) -> None:
        """The run has ended. `error`: a code, empty if there is none."""
        self._ended_at = time()
        self._outcome = self._outcome or outcome
        self._error = error or (self._outcome if self._outcome in _FAILED else "")

    def write(self, output: Output, worker: str) -> None:
        """Write the spans."""
        job = self._job
        ids: tracing.Attributes = {
            tracing.JOB: job.id,
            tracing.ATTEMPT: job.attempt,
            tracing.WORKER: worker,
        }
        if job.attempt == 1:
            period = (self._leased_at - job.waited_s, self._leased_at)
            tracing.write("queue", self._parent.child(), self._parent, period, ids)
        self._write_attempt(output, ids)

    def _write_attempt(self, output: Output, ids: tracing.Attributes) -> None:
        outcome: tracing.Attributes = {
            tracing.OUTCOME: self._outcome,
            tracing.INPUT_TOKENS: output.prompt_tokens,
            tracing.OUTPUT_TOKENS: output.completion_tokens,
        }
        whole = (self._leased_at, self._ended_at)
        tracing.write("attempt", self.ref, self._parent, whole, {**ids, **outcome}, self._error)
        first, ended_at = output.first_output_at, self._ended_at
        prefilled_at = ended_at if first is None else self._leased_at + first - self._leased
        tracing.write("prefill", self.ref.child(), self.ref, (self._leased_at, prefilled_at))
        if first is not None:
            tracing.write("decode", self.ref.child(), self.ref, (prefilled_at, ended_at))
