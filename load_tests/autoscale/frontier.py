"""The best trade-offs between cost and wait that a policy's tunings reach (Pareto front). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class CostAndWait(NamedTuple):
    """What one tuning of a policy reaches under one load."""

    cost: float
    """Worker-seconds."""
    wait_s: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """The tunings that no other tuning beats in both cost and wait; the cheapest first."""

    points: Sequence[CostAndWait]

    def wait_s(self, cost: float) -> float | None:
        """Return the wait at this cost; None if all tunings cost more.

        Between two tunings the logarithm of the wait is interpolated: waits fall steeply with the
        first workers and slowly with the last.
        """
        if cost < self.points[0].cost:
            return None
        for left, right in pairwise(self.points):
            if cost <= right.cost:
                share = (cost - left.cost) / (right.cost - left.cost)
                low, high = math.log1p(left.wait_s), math.log1p(right.wait_s)
                return math.expm1(low + share * (high - low))
        return self.points[-1].wait_s


def frontier(points: Iterable[CostAndWait]) -> Frontier:
    """Return the frontier of at least one tuning."""
    best: list[CostAndWait] = []
    for point in sorted(points):
        if not best or point.wait_s < best[-1].wait_s:
            best.append(point)
    return Frontier(best)
