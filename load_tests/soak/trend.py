"""Does a figure stay where it is, or does it grow? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

SHARE = 0.05
"""Growth over the judged time that is no growth, as a share of the figure."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through a figure's samples after the warm-up."""

    name: str
    start: float
    """The line's value after the warm-up."""
    end: float
    """The line's value at the end."""
    bound: float
    """Growth that is allowed."""
    per_hour: float

    @property
    def flat(self) -> bool:
        """Falling is flat."""
        return self.end - self.start <= self.bound


def trend(
    name: str, points: Sequence[tuple[float, float]], *, warm_up_s: float, least: float
) -> Trend:
    """Of `(seconds, value)`, at least two after the warm-up; growth by less than `least` is none.

    While it warms up, caches fill and memory finds its place: that is not judged.

    The slope is the median of those between all pairs of points (Theil and Sen): peaks do not move
    it as long as they are fewer than three in ten.
    """
    judged = [(at, value) for at, value in points if at >= warm_up_s]
    slope = median((v - u) / (b - a) for (a, u), (b, v) in combinations(judged, 2))
    offset = median(value - slope * at for at, value in judged)
    start, end = (offset + slope * at for at in (judged[0][0], judged[-1][0]))
    return Trend(name, start, end, max(SHARE * abs(start), least), 3600 * slope)
