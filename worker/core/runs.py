"""The jobs that a worker holds: those that run, and those that ended here and are still leased.

Also the sums over all jobs since its start, for its heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from shared.job.job import LeasedJob
from shared.job.states import JobState
from shared.platform.metrics.worker import WorkerMetrics
from worker.core.job_run import JobRun
from worker.core.output_buffer import OutputBuffer
from worker.core.run_trace import REVOKED

log = logging.getLogger("flotilla.worker")

_NEWEST = 1 / 32
"""The part of a job in the moving mean."""


@dataclass(slots=True)
class WorkTotals:
    """Of all jobs; see the fields of the same names in WorkerInfo."""

    finished: int = 0
    job_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, run: JobRun) -> None:
        """Count a job that has ended, or was lost; released jobs do not count."""
        self.finished += 1
        took_s = time.monotonic() - run.started
        self.job_s += (took_s - self.job_s) * max(_NEWEST, 1 / self.finished)
        self.prompt_tokens += run.buffer.prompt_tokens


class Runs(dict[str, JobRun]):
    """The runs of one worker by job id. The run of a job's newest lease replaces older ones."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        super().__init__()
        self.unreleased: list[JobRun] = []
        """Runs that have ended without the job's end: their jobs must be released."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of all runs that have not ended, those of released jobs included."""
        self._totals = WorkTotals()
        self._metrics = metrics
        self._removed = asyncio.Event()

    def buffers(self) -> list[OutputBuffer]:
        """The output of all jobs that run."""
        return [run.buffer for run in self.values()]

    def known_jobs(self) -> list[str]:
        """The ids of all jobs that the worker has received and not given up."""
        return [*self, *(run.job.id for run in self.unreleased)]

    def remove(self, run: JobRun, *, released: bool) -> None:
        """A run has ended; `released`: its job has not, and goes on elsewhere."""
        self._totals.output_tokens += run.buffer.new_tokens
        if not released:
            self._totals.add(run)
        if self.get(run.job.id) is run:  # else the job runs again, under a newer lease
            del self[run.job.id]
        self._removed.set()

    @property
    def totals(self) -> WorkTotals:
        """The sums, with the tokens of the jobs that run."""
        totals = replace(self._totals)
        for buffer in self.buffers():
            totals.output_tokens += buffer.new_tokens
        return totals

    def abort(self, job_id: str) -> None:
        """Abort a job that another process has ended, if it runs here."""
        run = self.get(job_id)
        if run is not None:
            if run.trace is not None:
                run.trace.lease_lost(REVOKED)
            run.abort()

    def lease_lost(self, job: LeasedJob, state: str) -> None:
        """Abort a job whose lease is not this worker's any more; `state` is the job's state now."""
        run = self.get(job.id)
        # The job may run again, under a newer lease.
        if run is None or run.buffer.discarded or run.job.lease_id != job.lease_id:
            return
        if run.final_state == state:  # ended by this worker; the reply is on its way
            return
        if run.trace is not None:
            run.trace.lease_lost(state)
        self._metrics.fenced.labels(state).inc()
        # Clients cancel all the time; a job that another worker has taken is worth a warning.
        ended_by_client = state in {JobState.CANCELLED, JobState.EXPIRED}
        level = logging.DEBUG if ended_by_client else logging.WARNING
        log.log(level, "lease lost, run aborted: the job is %s", state, extra=job.log_fields)
        run.abort()

    async def wait_until_empty(self, deadline_s: float) -> bool:
        """Wait until no job runs; False if the deadline came first."""
        try:
            async with asyncio.timeout(deadline_s):
                while self:
                    self._removed.clear()
                    await self._removed.wait()
        except TimeoutError:
            return False
        return True
