"""What a policy and its tunings can do: how long jobs wait at what cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Point(NamedTuple):
    """One tuning under one load."""

    cost: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """The tunings that no other one beats in both; the cheapest is the first."""

    points: Sequence[Point]

    def wait_s(self, cost: float) -> float | None:
        """At that cost; None if none of them is as cheap.

        Between two tunings the logarithm of the wait is taken to be straight: waits fall steeply
        with the first workers and slowly with the last.
        """
        if cost < self.points[0].cost:
            return None
        for left, right in pairwise(self.points):
            if cost <= right.cost:
                share = (cost - left.cost) / (right.cost - left.cost)
                low, high = math.log1p(left.wait_s), math.log1p(right.wait_s)
                return math.expm1(low + share * (high - low))
        return self.points[-1].wait_s


def frontier(points: Iterable[Point]) -> Frontier:
    """Of at least one tuning."""
    best: list[Point] = []
    for point in sorted(points):
        if not best or point.wait_s < best[-1].wait_s:
            best.append(point)
    return Frontier(best)
