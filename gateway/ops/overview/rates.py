"""How fast counters grow: of the fleet's jobs, and of the workers' tokens. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from shared.fleet.registry import WorkerInfo
from shared.job.states import JobState
from shared.store.redis.throughput import Throughput

WINDOW_S = 10.0
"""The time that rates are means of."""

Rates = dict[str, float | None]

_CANCELLED = (JobState.CANCELLED, JobState.EXPIRED)


def job_counters(total: Throughput, unfinished: int) -> dict[str, int]:
    """The fleet's counters of jobs; `unfinished` are queued or run now.

    Redis counts submitted jobs and those that end without an answer; the others are completed.
    """
    failed = total.ended.get(JobState.FAILED, 0)
    cancelled = sum(total.ended.get(state, 0) for state in _CANCELLED)
    return {
        "failed": failed,
        "cancelled": cancelled,
        "submitted": total.submitted,
        "completed": total.submitted - unfinished - failed - cancelled,
    }


class JobRates:
    """Rates of the counters of `job_counters`."""

    NAMES = ("submitted", "completed", "failed", "cancelled")

    def __init__(self) -> None:
        self._moments: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, at_s: float, counters: Mapping[str, int]) -> None:
        """The counters at this time, on a monotonic clock."""
        self._moments.append((at_s, counters))
        while at_s - self._moments[0][0] > WINDOW_S:
            self._moments.popleft()

    def per_s(self) -> Rates:
        """Each counter's rate; None where two readings are missing."""
        return {name: self._rate(name) for name in self.NAMES}

    def increases(self) -> dict[str, int]:
        """How much each counter has grown within the window."""
        first, last = (self._moments[0][1], self._moments[-1][1]) if self._moments else ({}, {})
        both = first.keys() & last.keys()
        return {name: last[name] - first[name] for name in self.NAMES if name in both}

    def _rate(self, name: str) -> float | None:
        if len(self._moments) < 2:
            return None
        (began_s, first), (ended_s, last) = self._moments[0], self._moments[-1]
        if name not in first or name not in last or ended_s <= began_s:
            return None
        return round(max(0, last[name] - first[name]) / (ended_s - began_s), 2)


class WorkerRates:
    """Tokens per second of each worker, from its heartbeats."""

    def __init__(self) -> None:
        self.output: dict[str, float] = {}
        """Output tokens per second, by worker, between its last two heartbeats."""
        self.prompt: dict[str, float] = {}
        """The same for the prompts of jobs that have ended."""
        self._last: dict[str, WorkerInfo] = {}

    def update(self, workers: Iterable[WorkerInfo]) -> None:
        """Add the workers' heartbeats; those that are known already change nothing."""
        last, self._last = self._last, {}
        for worker in workers:
            before = last.get(worker.id)
            self._last[worker.id] = worker
            if before is not None and worker.clock_s == before.clock_s:
                continue
            restarted = (
                before is None
                or worker.clock_s < before.clock_s
                or worker.finished < before.finished
            )
            if before is None or restarted:
                continue
            passed_s = worker.clock_s - before.clock_s
            if passed_s > WINDOW_S:  # there were no viewers meanwhile
                continue
            self.output[worker.id] = max(0, worker.output_tokens - before.output_tokens) / passed_s
            self.prompt[worker.id] = (worker.prompt_tokens - before.prompt_tokens) / passed_s
        for rates in (self.output, self.prompt):
            for gone in rates.keys() - self._last.keys():
                del rates[gone]
