"""The compared policies: Flotilla's, fixed sizes, and KEDA with the HPA at their defaults."""

from __future__ import annotations

import math
from collections import deque

from gateway.ops.autoscaler.policy import decide
from load_tests.autoscale.pool import Policy
from shared.fleet.autoscale_types import Limits, Observation, PolicyState

_POLLING_S = 30.0
_COOLDOWN_S = 300.0
_SYNC_S = 15.0
_TOLERANCE = 0.1
_STABILIZATION_S = 300.0
_PODS_AT_ONCE = 4


class FlotillaPolicy(Policy):
    """gateway/ops/autoscaler/policy.py, called as often as the maintenance process calls it."""

    every_s = 2.0

    def __init__(self, limits: Limits, name: str = "Flotilla") -> None:
        self.name = name
        self._limits = limits
        self._state: PolicyState | None = None

    def wanted(self, now: Observation) -> int:
        """Return the number of workers to have now."""
        decision = decide(now, self._limits, self._state)
        self._state = decision.state
        return decision.wanted


class FixedPolicy(Policy):
    """Always the same number of workers."""

    every_s = 60.0

    def __init__(self, workers: int) -> None:
        self.name = f"{workers} fixed"
        self.workers = workers

    def wanted(self, now: Observation) -> int:
        """Return the number of workers to have now."""
        return self.workers


class KedaPolicy(Policy):
    """A KEDA ScaledObject with a target of jobs per replica and defaults for the rest.

    KEDA checks every 30 s for jobs: it starts the first replica if there are any, and stops the
    last one when there were none for 300 s. With at least one replica the HPA decides every 15 s:
    it ignores differences up to a tenth, at most doubles the replicas or adds four, and scales down
    no lower than the highest advice of the last 300 s.
    """

    every_s = _SYNC_S
    stops_starting_first = True

    def __init__(
        self, target: float, min_workers: int, max_workers: int, *, running: bool = False
    ) -> None:
        """`target`: waiting jobs (the lag) per replica; with `running` also running jobs."""
        self.name = f"{'waiting + running' if running else 'lag'} / {target:g}"
        self._target = target
        self._min = min_workers
        self._max = max_workers
        self._running = running
        self._replicas = min_workers
        self._polled_at_s = -math.inf
        self._active_at_s = -math.inf
        self._advised: deque[tuple[float, int]] = deque()

    def wanted(self, now: Observation) -> int:
        """Return the number of workers to have now."""
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
        elif not self._min and at_s - self._active_at_s >= _COOLDOWN_S:
            self._replicas = 0
            self._advised.clear()

    def _hpa(self, at_s: float, jobs: int) -> int:
        ratio = jobs / (self._target * self._replicas)
        near = abs(ratio - 1) <= _TOLERANCE
        advice = self._replicas if near else math.ceil(jobs / self._target)
        advice = min(max(advice, self._min, 1), self._max)
        while self._advised and at_s - self._advised[0][0] >= _STABILIZATION_S:
            self._advised.popleft()
        self._advised.append((at_s, advice))
        if advice < self._replicas:
            return min(self._replicas, max(workers for _, workers in self._advised))
        return min(advice, max(2 * self._replicas, self._replicas + _PODS_AT_ONCE))
