"""Percentiles of the last minutes, from cumulative histograms. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

Counts = tuple[int, ...]

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class HistogramWindow:
    """The counts of one histogram at some moments of the last minutes.

    Until the window is full it holds everything since the histogram began.
    """

    def __init__(self, bounds: Sequence[float], window_s: float, step_s: float) -> None:
        """`bounds`: the upper limits of all buckets but the last; `step_s`: between two moments."""
        self._bounds = bounds
        self._window_s = window_s
        self._step_s = step_s
        self._moments: deque[tuple[float, Counts]] = deque()
        self._now: Counts = (0,) * (len(bounds) + 1)
        self._base: Counts = (0,) * (len(bounds) + 1)
        self.since_s: float | None = None
        """When the window begins; None: with the histogram."""

    def add(self, at_s: float, counts: Counts) -> None:
        """The histogram at this time, on a monotonic clock."""
        self._now = counts
        if not self._moments or at_s - self._moments[-1][0] >= self._step_s:
            self._moments.append((at_s, counts))
        while self._moments and at_s - self._moments[0][0] > self._window_s:
            self.since_s, self._base = self._moments.popleft()

    def quantiles(self) -> dict[str, float | None] | None:
        """`{p50, p95, p99}` of the values in the window, in seconds; None if there are none."""
        both = zip(self._now, self._base, strict=True)
        counts = [max(0, now - before) for now, before in both]
        if not sum(counts):
            return None
        return {name: quantile(self._bounds, counts, share) for name, share in _SHARES.items()}


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The value below which `share` of the values are, as Prometheus estimates it.

    Values are taken as evenly spread over their bucket; those above the last limit as that limit.
    """
    totals = list(accumulate(counts))
    rank = share * totals[-1]
    bucket = bisect_left(totals, rank)
    if bucket >= len(bounds):
        return bounds[-1]
    below = totals[bucket - 1] if bucket else 0
    lower = bounds[bucket - 1] if bucket else 0.0
    within = (rank - below) / (counts[bucket] or 1)
    return lower + (bounds[bucket] - lower) * within
