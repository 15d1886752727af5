"""A pool of simulated workers under a load and a policy; its seconds pass as fast as they can.

Jobs queue first in, first out. A worker has slots, each runs one job at a time; it costs from being
asked for until it is gone, and one that is let go ends what it runs first. Policies see what a
real observer would: rates and means of late, not the load's own figures.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from load_tests.autoscale.arrivals import TOKENS_PER_S, Arrival
from shared.fleet.autoscale_policy import Observation

_START_UNIX_S = 1.7e9
_WINDOW_S = 30.0
"""What is averaged over time fades by e in so long."""
_NEWEST = 0.3
"""What the newest start weighs in the mean of starts."""
_START_SPREAD = 0.1


class Policy(Protocol):
    """Says how many workers there should be."""

    @property
    def name(self) -> str:
        """For the table."""

    @property
    def every_s(self) -> float:
        """How often it is asked."""

    @property
    def stops_loading(self) -> bool:
        """Whether it lets a worker go that loads before one that works, as a ReplicaSet does."""

    def wanted(self, now: Observation) -> int:
        """How many workers to have."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What it cost, and how long jobs waited."""

    worker_s: float
    waits_s: Sequence[float]
    """Of each job, from its arrival until it has a slot; sorted."""


@dataclass(slots=True, eq=False)
class _Worker:
    asked_s: float
    ready: bool = False
    leaves: bool = False
    running: int = 0


class _Flow:
    """What an observer learns from what comes and ends."""

    def __init__(self) -> None:
        self.came = 0
        self.ended = 0
        self.ended_job_s = 0.0
        self.arrivals_per_s = 0.0
        self.job_s: float | None = None
        self._seen_s = 0.0
        self._jobs = 0.0
        self._job_s = 0.0

    def look(self, at_s: float) -> None:
        passed_s = at_s - self._seen_s
        if not passed_s:
            return
        kept = math.exp(-passed_s / _WINDOW_S)
        self.arrivals_per_s = kept * self.arrivals_per_s + (1 - kept) * self.came / passed_s
        if self.ended:  # silence says nothing about how long jobs take
            self._jobs = kept * self._jobs + self.ended
            self._job_s = kept * self._job_s + self.ended_job_s
            self.job_s = self._job_s / self._jobs
        self._seen_s, self.came, self.ended, self.ended_job_s = at_s, 0, 0, 0.0


class Pool:
    """Of `slots` slots a worker, which takes about `start_s` to start. Runs once."""

    def __init__(self, slots: int, start_s: float, seed: int) -> None:
        self._slots = slots
        self._start_s = start_s
        self._chance = random.Random(seed)
        self._at_s = 0.0
        self._queue: deque[Arrival] = deque()
        self._queue_tokens = 0.0
        self._workers: list[_Worker] = []
        # (when, a number that no other has, whose, the job that ends; 0: the worker is ready)
        self._events: list[tuple[float, int, _Worker, float]] = []
        self._numbers = 0
        self._rates = _Flow()
        self._seen_start_s: float | None = None
        self._seen_slots: int | None = None
        self._worker_s = 0.0
        self._waits_s: list[float] = []

    def run(
        self, arrivals: Sequence[Arrival], policy: Policy, seconds: float, there: int
    ) -> Outcome:
        """At least `seconds`, and until every job has ended. `there` workers are ready at first."""
        for _ in range(there):
            self._workers.append(_Worker(0.0))
            self._ready(self._workers[-1])
        coming = deque(arrivals)
        look_s = 0.0
        while self._at_s < seconds or coming or self._queue or self._running():
            job_s = coming[0].at_s if coming else math.inf
            event_s = self._events[0][0] if self._events else math.inf
            self._at_s = min(look_s, job_s, event_s)
            if event_s <= self._at_s:
                self._happen()
            elif job_s <= self._at_s:
                self._come(coming.popleft())
            else:
                self._resize(policy.wanted(self._observe()), policy.stops_loading)
                look_s += policy.every_s
        self._worker_s += sum(self._at_s - worker.asked_s for worker in self._workers)
        return Outcome(self._worker_s, sorted(self._waits_s))

    def _observe(self) -> Observation:
        self._rates.look(self._at_s)
        staying = [worker for worker in self._workers if not worker.leaves]
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

    def _come(self, job: Arrival) -> None:
        self._rates.came += 1
        self._queue.append(job)
        self._queue_tokens += job.tokens
        self._take()

    def _happen(self) -> None:
        _, _, worker, job_s = heapq.heappop(self._events)
        if job_s:
            self._end(worker, job_s)
        elif worker in self._workers:
            took_s = self._at_s - worker.asked_s
            known_s = took_s if self._seen_start_s is None else self._seen_start_s
            self._seen_start_s = known_s + _NEWEST * (took_s - known_s)
            self._ready(worker)

    def _ready(self, worker: _Worker) -> None:
        worker.ready = True
        self._seen_slots = self._slots
        self._take()

    def _end(self, worker: _Worker, job_s: float) -> None:
        worker.running -= 1
        self._rates.ended += 1
        self._rates.ended_job_s += job_s
        if worker.leaves and not worker.running:
            self._go(worker)
        self._take()

    def _take(self) -> None:
        """The first in the queue go to whoever has the most free slots."""
        while self._queue:
            able = [
                w for w in self._workers if w.ready and not w.leaves and w.running < self._slots
            ]
            if not able:
                return
            worker = min(able, key=lambda worker: worker.running)
            job = self._queue.popleft()
            self._queue_tokens = self._queue_tokens - job.tokens if self._queue else 0.0
            self._waits_s.append(self._at_s - job.at_s)
            worker.running += 1
            self._after(job.job_s, worker, job.job_s)

    def _after(self, delay_s: float, worker: _Worker, job_s: float) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (self._at_s + delay_s, self._numbers, worker, job_s))

    def _resize(self, wanted: int, stops_loading: bool) -> None:
        staying = [worker for worker in self._workers if not worker.leaves]
        for _ in range(wanted - len(staying)):
            self._workers.append(_Worker(self._at_s))
            spread = self._chance.uniform(1 - _START_SPREAD, 1 + _START_SPREAD)
            self._after(spread * self._start_s, self._workers[-1], 0.0)
        staying.sort(key=lambda worker: (worker.ready == stops_loading, worker.running))
        for worker in staying[: max(0, len(staying) - wanted)]:
            worker.leaves = True
            if not worker.running:
                self._go(worker)

    def _go(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._worker_s += self._at_s - worker.asked_s
