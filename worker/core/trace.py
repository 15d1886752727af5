"""The spans of one run of a traced job: queue, attempt, prefill, decode; written at its end."""

from __future__ import annotations

from time import monotonic, time

from shared.job.trace_context import SpanRef, parse
from shared.platform import tracing
from shared.store.queue import HeldJob
from worker.core.output import Output

_FAILED = frozenset({"engine_died", "run_failed", "lost"})


class RunTrace:
    """The times of one run. `ref` is the span of its attempt, `parent` that of the request."""

    def __init__(self, job: HeldJob, parent: SpanRef) -> None:
        self.ref = parent.attempt(job.id, job.attempt)
        self._parent = parent
        self._job = job
        self._leased_at = time()
        self._leased = monotonic()

    @classmethod
    def of(cls, job: HeldJob) -> RunTrace | None:
        """None if the job, or this process, is not traced."""
        traceparent = job.origin.traceparent
        parent = parse(traceparent) if traceparent and tracing.is_on() else None
        return None if parent is None else cls(job, parent)

    def write(self, output: Output, worker: str, ending: str, error: str) -> None:
        """Write the spans of a run that has just ended. `error`: a code, empty if there is none."""
        ended_at, error = time(), error or (ending if ending in _FAILED else "")
        job = self._job
        ids: tracing.Attributes = {
            tracing.JOB: job.id,
            tracing.ATTEMPT: job.attempt,
            tracing.WORKER: worker,
        }
        if job.attempt == 1:
            period = (self._leased_at - job.waited_s, self._leased_at)
            tracing.write("queue", self._parent.child(), self._parent, period, ids)
        attempt: tracing.Attributes = {
            **ids,
            tracing.OUTCOME: ending,
            tracing.INPUT_TOKENS: output.prompt_tokens,
            tracing.OUTPUT_TOKENS: output.completion_tokens,
        }
        whole = (self._leased_at, ended_at)
        tracing.write("attempt", self.ref, self._parent, whole, attempt, error)
        first = output.first_output_at
        prefilled_at = ended_at if first is None else self._leased_at + first - self._leased
        tracing.write("prefill", self.ref.child(), self.ref, (self._leased_at, prefilled_at))
        if first is not None:
            tracing.write("decode", self.ref.child(), self.ref, (prefilled_at, ended_at))
