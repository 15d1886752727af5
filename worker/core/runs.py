"""The jobs that a worker holds: those that run, and those that ended here and are still leased.

Also the sums over all jobs since its start, for its heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from shared.job.states import JobState
from shared.platform.metrics.worker import WorkerMetrics
from worker.core.job_run import JobRun
from worker.core.output import Output
from worker.core.publish import REVOKED

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
        self.prompt_tokens += run.output.prompt_tokens


class Runs(dict[str, JobRun]):
    """The runs of one worker by job id. The run of a job's newest lease replaces older ones."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        super().__init__()
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of all runs that have not ended, those of released jobs included."""
        self._totals = WorkTotals()
        self._metrics = metrics
        self._removed = asyncio.Event()

    def remove(self, run: JobRun, *, released: bool) -> None:
        """A run has ended; `released`: its job has not, and goes on elsewhere."""
        self._totals.output_tokens += run.output.new_tokens
        if not released:
            self._totals.add(run)
        if self.get(run.job.id) is run:  # else the job runs again, under a newer lease
            del self[run.job.id]
        self._removed.set()

    @property
    def totals(self) -> WorkTotals:
        """The sums, with the tokens of the jobs that run."""
        totals = replace(self._totals)
        for run in self.values():
            totals.output_tokens += run.output.new_tokens
        return totals

    def lost(self, output: Output, state: str) -> None:
        """Abort a job that is not this worker's any more; `state` is the job's state now."""
        run = self.get(output.id)
        if run is None or run.output is not output:  # it may run again
            return
        if run.trace is not None:
            run.trace.lease_lost(state)
        if state != REVOKED:
            self._metrics.fenced.labels(state).inc()
        # Clients cancel all the time; a job that another worker has taken is worth a warning.
        ended_by_client = state in {JobState.CANCELLED, JobState.EXPIRED, REVOKED}
        level = logging.DEBUG if ended_by_client else logging.WARNING
        log.log(level, "job lost, run aborted: it is %s", state, extra=run.job.log_fields)
        run.abort()

    def give_up(self, output: Output, reason: str) -> None:
        """Abort a job that this worker gives back for this reason."""
        run = self.get(output.id)
        if run is None or run.output is not output:
            return
        if run.trace is not None:
            run.trace.released(reason)
        del self[output.id]
        run.released = True
        run.abort(release=True)

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
