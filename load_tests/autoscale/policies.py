"""The policies that are compared: ours, fixed sizes, and what KEDA with the HPA does by default."""

from __future__ import annotations

import math
from collections import deque

from shared.fleet.autoscale_policy import Limits, Observation, PolicyState, decide

_POLLING_S = 30.0
_COOLDOWN_S = 300.0
_SYNC_S = 15.0
_TOLERANCE = 0.1
_STABILIZATION_S = 300.0
_PODS_AT_ONCE = 4


class Flotilla:
    """shared/fleet/autoscale_policy.py, asked as often as the maintenance process asks it."""

    every_s = 2.0
    stops_loading = False

    def __init__(self, limits: Limits, name: str = "Flotilla") -> None:
        self.name = name
        self._limits = limits
        self._memory: PolicyState | None = None

    def wanted(self, now: Observation) -> int:
        """How many workers to have."""
        decision = decide(now, self._limits, self._memory)
        self._memory = decision.memory
        return decision.wanted


class Fixed:
    """Always so many."""

    every_s = 60.0
    stops_loading = False

    def __init__(self, workers: int) -> None:
        self.name = f"{workers} fixed"
        self.workers = workers

    def wanted(self, now: Observation) -> int:
        """How many workers to have."""
        return self.workers


class Keda:
    """A ScaledObject with so many jobs a replica as its target, and nothing else said.

    So every 30 s KEDA looks whether there is anything, and makes one of no replicas; it takes the
    last one away when for 300 s there was nothing. Between that the HPA looks every 15 s, ignores a
    tenth of difference, at most doubles or adds four, and goes down no lower than to the most that
    it wanted in 300 s.
    """

    every_s = _SYNC_S
    stops_loading = True

    def __init__(self, target: float, least: int, most: int, *, running: bool = False) -> None:
        """Jobs are those that wait, which is the lag; with `running` those that run as well."""
        self.name = f"{'waiting + running' if running else 'lag'} / {target:g}"
        self._target = target
        self._least = least
        self._most = most
        self._running = running
        self._replicas = least
        self._polled_at_s = -math.inf
        self._active_at_s = -math.inf
        self._advised: deque[tuple[float, int]] = deque()

    def wanted(self, now: Observation) -> int:
        """How many workers to have."""
        jobs = now.waiting + (now.running if self._running else 0)
        if now.at_s - self._polled_at_s >= _POLLING_S:
            self._polled_at_s = now.at_s
            self._poll(now.at_s, jobs)
        if self._replicas:
            self._replicas = self._hpa(now.at_s, jobs)
        return self._replicas

    def _poll(self, at_s: float, jobs: int) -> None:
        if jobs:
            self._active_at_s = at_s
            self._replicas = max(1, self._replicas)
        elif not self._least and at_s - self._active_at_s >= _COOLDOWN_S:
            self._replicas = 0
            self._advised.clear()

    def _hpa(self, at_s: float, jobs: int) -> int:
        ratio = jobs / (self._target * self._replicas)
        near = abs(ratio - 1) <= _TOLERANCE
        advice = self._replicas if near else math.ceil(jobs / self._target)
        advice = min(max(advice, self._least, 1), self._most)
        while self._advised and at_s - self._advised[0][0] >= _STABILIZATION_S:
            self._advised.popleft()
        self._advised.append((at_s, advice))
        if advice < self._replicas:
            return min(self._replicas, max(workers for _, workers in self._advised))
        return min(advice, max(2 * self._replicas, self._replicas + _PODS_AT_ONCE))
