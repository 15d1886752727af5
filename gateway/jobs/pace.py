"""How long a pool's jobs keep their slot, of late: two looks at counters that only grow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.fleet.registry import WorkerInfo

WINDOW_S = 30.0
"""What is averaged over time is averaged over about so long."""


class Pace:
    """Of all pools. What was done before the first look has the weight of one job."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}
        self._recent: dict[str, tuple[float, float]] = {}  # jobs, seconds
        self._at_s: float | None = None

    def look(self, workers: Sequence[WorkerInfo], at_s: float) -> None:
        """Note what the workers have done, at a time of the monotonic clock."""
        first = self._at_s is None
        kept = 0.0 if self._at_s is None else math.exp((self._at_s - at_s) / WINDOW_S)
        self._at_s = at_s
        done: dict[str, tuple[float, float]] = {}
        for worker in workers:
            jobs, seconds = self._known.get(worker.id, (0, 0.0))
            if jobs > worker.finished:
                jobs, seconds = 0, 0.0  # it began anew
            sum_jobs, sum_seconds = done.get(worker.pool, (0.0, 0.0))
            done[worker.pool] = (
                sum_jobs + worker.finished - jobs,
                sum_seconds + worker.job_seconds - seconds,
            )
        self._known = {worker.id: (worker.finished, worker.job_seconds) for worker in workers}
        for pool, (jobs_done, seconds_done) in done.items():
            if not jobs_done:
                continue  # silence says nothing about how long jobs take
            if first:
                jobs_done, seconds_done = 1.0, seconds_done / jobs_done
            jobs_before, seconds_before = self._recent.get(pool, (0.0, 0.0))
            self._recent[pool] = (
                jobs_done + kept * jobs_before,
                seconds_done + kept * seconds_before,
            )

    def job_s(self, pool: str) -> float | None:
        """None as long as no job of the pool has ended."""
        if pool not in self._recent:
            return None
        jobs, seconds = self._recent[pool]
        return seconds / jobs
