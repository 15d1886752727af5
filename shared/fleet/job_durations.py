"""How long the jobs of a pool have kept their slot lately, from counters that workers announce."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.fleet.registry import WorkerInfo

WINDOW_S = 30.0
"""Time constant of the moving average."""


class JobDurations:
    """A moving average per pool. All that was done before the first reading counts as one job."""

    def __init__(self) -> None:
        self._counters: dict[str, tuple[int, float]] = {}  # by worker: jobs, seconds
        self._recent: dict[str, tuple[float, float]] = {}  # by pool: jobs, seconds
        self._read_at_s: float | None = None

    def update(self, workers: Sequence[WorkerInfo], at_s: float) -> None:
        """Add the workers' counters, read at `at_s`, a monotonic time in seconds."""
        first = self._read_at_s is None
        decay = 0.0 if self._read_at_s is None else math.exp((self._read_at_s - at_s) / WINDOW_S)
        self._read_at_s = at_s
        done: dict[str, tuple[float, float]] = {}
        for worker in workers:
            jobs, seconds = self._counters.get(worker.id, (0, 0.0))
            if jobs > worker.finished:
                jobs, seconds = 0, 0.0  # the worker was restarted
            sum_jobs, sum_seconds = done.get(worker.pool, (0.0, 0.0))
            done[worker.pool] = (
                sum_jobs + worker.finished - jobs,
                sum_seconds + worker.job_seconds - seconds,
            )
        self._counters = {worker.id: (worker.finished, worker.job_seconds) for worker in workers}
        for pool, (jobs_done, seconds_done) in done.items():
            if not jobs_done:
                continue  # no job has ended, so nothing is known about how long jobs take now
            if first:
                jobs_done, seconds_done = 1.0, seconds_done / jobs_done
            jobs_before, seconds_before = self._recent.get(pool, (0.0, 0.0))
            self._recent[pool] = (
                jobs_done + decay * jobs_before,
                seconds_done + decay * seconds_before,
            )

    def mean_s(self, pool: str) -> float | None:
        """The average in seconds; None as long as no job of the pool has ended."""
        if pool not in self._recent:
            return None
        jobs, seconds = self._recent[pool]
        return seconds / jobs
