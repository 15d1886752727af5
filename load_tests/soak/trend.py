"""Decides whether a figure grows over time or stays flat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

TOLERATED_SHARE = 0.05
"""Tolerated growth over the evaluated time, as a share of the figure."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a figure's samples after the warm-up."""

    name: str
    start: float
    """The line's value after the warm-up."""
    end: float
    """The line's value at the end."""
    tolerance: float
    """Growth that counts as flat."""
    per_hour: float
    """The line's slope."""

    @property
    def flat(self) -> bool:
        """Whether it grows by no more than the tolerance; falling counts as flat."""
        return self.end - self.start <= self.tolerance


def trend(
    name: str, points: Sequence[tuple[float, float]], *, warm_up_s: float, tolerance: float
) -> Trend:
    """Fit a line through `(seconds, value)` points; at least two must lie after the warm-up.

    The warm-up, in which caches fill, is left out. Growth by less than `tolerance` is flat.

    The slope is the median of the slopes between all pairs of points (Theil and Sen), which is
    robust against peaks as long as they are fewer than three points in ten.
    """
    evaluated = [(at, value) for at, value in points if at >= warm_up_s]
    slope = median((v - u) / (b - a) for (a, u), (b, v) in combinations(evaluated, 2))
    offset = median(value - slope * at for at, value in evaluated)
    start, end = (offset + slope * at for at in (evaluated[0][0], evaluated[-1][0]))
    return Trend(name, start, end, max(TOLERATED_SHARE * abs(start), tolerance), 3600 * slope)
