"""How a queue drains: jobs wait, workers take them, more workers are loading. Pure.

A worker whose slots are all taken takes a job whenever a slot becomes free, so `slots` jobs in
`job_s`; one that has just loaded takes `slots` jobs at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

Loading = tuple[tuple[float, int], ...]
"""(seconds until they are ready, workers), the soonest first."""


@dataclass(frozen=True, slots=True)
class WorkerSupply:
    """The workers that take jobs now or later."""

    ready: int
    loading: Loading
    slots: int
    """Of one worker."""

    @property
    def size(self) -> int:
        """All of them, ready or loading."""
        return self.ready + sum(workers for _, workers in self.loading)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs that find no free slot."""

    jobs: float
    job_s: float
    """How long a job keeps its slot; infinite while that is unknown."""
    arrivals_per_s: float = 0.0

    def left(self, supply: WorkerSupply, after_s: float) -> float:
        """Jobs that still wait `after_s` seconds from now."""
        jobs = self.jobs
        for start_s, end_s, workers, new in _stages(supply, after_s):
            jobs = max(0.0, jobs - new * supply.slots)
            jobs = max(0.0, jobs + (end_s - start_s) * self._growth_per_s(workers, supply.slots))
        return jobs

    def clear_s(self, supply: WorkerSupply) -> float:
        """Seconds until the queue is empty for the first time; infinite if it only grows."""
        jobs = self.jobs
        for start_s, end_s, workers, new in _stages(supply, math.inf):
            jobs -= new * supply.slots
            if jobs <= 0:
                return start_s
            growth = self._growth_per_s(workers, supply.slots)
            if growth < 0 and start_s - jobs / growth <= end_s:
                return start_s - jobs / growth
            jobs += (end_s - start_s) * growth if growth else 0.0
        return math.inf

    def more(self, supply: WorkerSupply, start_s: float, drain_s: float) -> int:
        """Workers to request now, so that the queue is clear `drain_s` after they have loaded."""
        growth = self._growth_per_s(supply.size, supply.slots)
        too_many = self.left(supply, start_s) + drain_s * growth
        return max(0, math.ceil(too_many / (supply.slots * (1 + drain_s / self.job_s))))

    def _growth_per_s(self, workers: int, slots: int) -> float:
        return self.arrivals_per_s - workers * slots / self.job_s


def _stages(supply: WorkerSupply, until_s: float) -> Iterator[tuple[float, float, int, int]]:
    """(from, to, workers, how many of them have just loaded), until the end."""
    start_s, workers, new = 0.0, supply.ready, 0
    for ready_in_s, more in supply.loading:
        if ready_in_s > until_s:
            break
        yield start_s, ready_in_s, workers, new
        start_s, workers, new = ready_in_s, workers + more, more
    yield start_s, until_s, workers, new
