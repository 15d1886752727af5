"""What a worker has done since its start, for its heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from worker.core.job_run import JobRun

_AGES = 16
"""Most ages in a heartbeat."""


@dataclass(slots=True)
class WorkTotals:
    """Sums over all jobs; see the fields of the same names in WorkerInfo."""

    finished: int = 0
    job_seconds: float = 0.0
    request_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0

    def add(self, run: JobRun) -> None:
        """Count a job that has ended, or was lost; released jobs do not count."""
        self.finished += 1
        self.job_seconds += time.monotonic() - run.started
        self.request_bytes += len(run.job.body)
        self.prompt_tokens += run.buffer.prompt_tokens
        self.completion_tokens += run.buffer.completion_tokens

    def add_output(self, run: JobRun) -> None:
        """Count the tokens of a run that has ended, however it did."""
        self.output_tokens += run.buffer.new_tokens

    def with_running(self, runs: Iterable[JobRun]) -> WorkTotals:
        """The same with the tokens of these runs, which have not ended."""
        return replace(
            self, output_tokens=self.output_tokens + sum(run.buffer.new_tokens for run in runs)
        )


def ages(runs: Iterable[JobRun]) -> tuple[float, ...]:
    """Seconds since each run started, the oldest first; of many runs, an even sample."""
    now = time.monotonic()
    seconds = sorted((now - run.started for run in runs), reverse=True)
    return tuple(round(age, 1) for age in seconds[:: -(-len(seconds) // _AGES) or 1])
