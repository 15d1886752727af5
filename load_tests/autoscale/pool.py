"""A simulated pool of workers under a load and a policy, in simulated time.

Jobs queue first in, first out. A worker has slots, each of which runs one job at a time. A worker
costs from its request to its end; one that is drained finishes its running jobs first. Policies get
what a real observer would measure, recent rates and means, not the load's own parameters.
"""

from __future__ import annotations

import heapq
import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.autoscale.arrivals import TOKENS_PER_S, Arrival
from shared.fleet.autoscale_types import Observation

_START_UNIX_S = 1.7e9
"""Unix time at the start of the simulation."""
_WINDOW_S = 30.0
"""Time constant of averages over time: older values count 1/e after it."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest value in the mean start time."""
_START_SPREAD = 0.1


class Policy(ABC):
    """Decides how many workers a pool has."""

    name: str
    every_s: float
    """Seconds between its decisions."""
    stops_starting_first = False
    """Whether it stops starting workers before ready ones, as a ReplicaSet does."""

    @abstractmethod
    def wanted(self, now: Observation) -> int:
        """Return the number of workers to have now."""


@dataclass(frozen=True, slots=True)
class PoolResult:
    """What a simulated pool cost, and how long its jobs waited."""

    worker_s: float
    """Worker-seconds."""
    waits_s: Sequence[float]
    """Seconds of each job from its arrival until it has a slot; sorted."""


@dataclass(slots=True, eq=False)
class _Worker:
    requested_s: float
    ready: bool = False
    draining: bool = False
    running: int = 0


class _RateState:
    """Rates and means of recent arrivals and ended jobs, as an observer measures them."""

    def __init__(self) -> None:
        self.arrived = 0
        self.ended = 0
        self.ended_job_s = 0.0
        self.arrivals_per_s = 0.0
        self.job_s: float | None = None
        self._seen_s = 0.0
        self._jobs = 0.0
        self._job_s = 0.0

    def update(self, at_s: float) -> None:
        passed_s = at_s - self._seen_s
        if not passed_s:
            return
        kept = math.exp(-passed_s / _WINDOW_S)
        self.arrivals_per_s = kept * self.arrivals_per_s + (1 - kept) * self.arrived / passed_s
        if self.ended:  # without ended jobs the mean run time stays as it is
            self._jobs = kept * self._jobs + self.ended
            self._job_s = kept * self._job_s + self.ended_job_s
            self.job_s = self._job_s / self._jobs
        self._seen_s, self.arrived, self.ended, self.ended_job_s = at_s, 0, 0, 0.0


class SimulatedPool:
    """Workers with `slots` slots each that take about `start_s` seconds to start. Runs once."""

    def __init__(self, slots: int, start_s: float, seed: int) -> None:
        self._slots = slots
        self._start_s = start_s
        self._rng = random.Random(seed)
        self._at_s = 0.0
        self._queue: deque[Arrival] = deque()
        self._queue_tokens = 0.0
        self._workers: list[_Worker] = []
        # (time, unique number, worker, seconds of the job that ends; 0: the worker is ready)
        self._events: list[tuple[float, int, _Worker, float]] = []
        self._event_count = 0
        self._rates = _RateState()
        self._seen_start_s: float | None = None
        self._seen_slots: int | None = None
        self._worker_s = 0.0
        self._waits_s: list[float] = []

    def run(
        self, arrivals: Sequence[Arrival], policy: Policy, seconds: float, initial_workers: int
    ) -> PoolResult:
        """Simulate at least `seconds`, and until each job has ended.

        `initial_workers` are ready at the start.
        """
        for _ in range(initial_workers):
            self._workers.append(_Worker(0.0))
            self._on_ready(self._workers[-1])
        future = deque(arrivals)
        decision_s = 0.0
        while self._at_s < seconds or future or self._queue or self._running():
            job_s = future[0].at_s if future else math.inf
            event_s = self._events[0][0] if self._events else math.inf
            self._at_s = min(decision_s, job_s, event_s)
            if event_s <= self._at_s:
                self._run_next_event()
            elif job_s <= self._at_s:
                self._arrive(future.popleft())
            else:
                self._resize(policy.wanted(self._observe()), policy.stops_starting_first)
                decision_s += policy.every_s
        self._worker_s += sum(self._at_s - worker.requested_s for worker in self._workers)
        return PoolResult(self._worker_s, sorted(self._waits_s))

    def _observe(self) -> Observation:
        self._rates.update(self._at_s)
        staying = [worker for worker in self._workers if not worker.draining]
        ready = sum(worker.ready for worker in staying)
        job_s = self._rates.job_s
        return Observation(
            at_s=_START_UNIX_S + self._at_s,
            waiting=len(self._queue),
            waiting_tokens=self._queue_tokens,
            oldest_s=self._at_s - self._queue[0].at_s if self._queue else 0.0,
            running=self._running(),
            arrivals_per_s=self._rates.arrivals_per_s,
            job_s=job_s,
            job_tokens=None if job_s is None else TOKENS_PER_S * job_s,
            slots=self._seen_slots,
            ready=ready,
            starting=len(staying) - ready,
            draining=len(self._workers) - len(staying),
            start_s=self._seen_start_s,
        )

    def _running(self) -> int:
        return sum(worker.running for worker in self._workers)

    def _arrive(self, job: Arrival) -> None:
        self._rates.arrived += 1
        self._queue.append(job)
        self._queue_tokens += job.tokens
        self._dispatch()

    def _run_next_event(self) -> None:
        _, _, worker, job_s = heapq.heappop(self._events)
        if job_s:
            self._finish_job(worker, job_s)
        elif worker in self._workers:
            start_s = self._at_s - worker.requested_s
            known_s = start_s if self._seen_start_s is None else self._seen_start_s
            self._seen_start_s = known_s + _NEWEST_WEIGHT * (start_s - known_s)
            self._on_ready(worker)

    def _on_ready(self, worker: _Worker) -> None:
        worker.ready = True
        self._seen_slots = self._slots
        self._dispatch()

    def _finish_job(self, worker: _Worker, job_s: float) -> None:
        worker.running -= 1
        self._rates.ended += 1
        self._rates.ended_job_s += job_s
        if worker.draining and not worker.running:
            self._remove(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give the first jobs of the queue to the workers with the most free slots."""
        while self._queue:
            free = [
                w for w in self._workers if w.ready and not w.draining and w.running < self._slots
            ]
            if not free:
                return
            worker = min(free, key=lambda worker: worker.running)
            job = self._queue.popleft()
            self._queue_tokens = self._queue_tokens - job.tokens if self._queue else 0.0
            self._waits_s.append(self._at_s - job.at_s)
            worker.running += 1
            self._schedule(job.job_s, worker, job.job_s)

    def _schedule(self, delay_s: float, worker: _Worker, job_s: float) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (self._at_s + delay_s, self._event_count, worker, job_s))

    def _resize(self, wanted: int, stops_starting_first: bool) -> None:
        staying = [worker for worker in self._workers if not worker.draining]
        for _ in range(wanted - len(staying)):
            self._workers.append(_Worker(self._at_s))
            spread = self._rng.uniform(1 - _START_SPREAD, 1 + _START_SPREAD)
            self._schedule(spread * self._start_s, self._workers[-1], 0.0)
        staying.sort(key=lambda worker: (worker.ready == stops_starting_first, worker.running))
        for worker in staying[: max(0, len(staying) - wanted)]:
            worker.draining = True
            if not worker.running:
                self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._worker_s += self._at_s - worker.requested_s
