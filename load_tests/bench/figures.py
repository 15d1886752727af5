"""Computes the figures of the tables from raw measurements. Pure.

Systems are compared within a round: the ratio to the other system's value of the same round, then
the median of those ratios. Machines change their speed from minute to minute, so a ratio of two
medians would compare different minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from load_tests.bench.measurement import Measurement, Results
from load_tests.harness.spread import Spread, spread

BASE = "direct"
"""The system that all others are compared with."""

_MAX_STOLEN = 0.05
_MIN_PAIRS = 3

Quantity = Callable[[Measurement], float]
Combine = Callable[[float, float], float]


def added_ttft_ms(measurement: Measurement, time_s: float) -> float:
    """Return milliseconds of a time to first token beyond one engine step."""
    return 1e3 * (time_s - measurement.step_s)


QUANTITIES: Mapping[str, Quantity] = {
    "total_us": attrgetter("total_us"),
    "front_us": attrgetter("front_us"),
    "ttft_p50_ms": lambda m: added_ttft_ms(m, m.client.ttft_p50_s),
    "ttft_p99_ms": lambda m: added_ttft_ms(m, m.client.ttft_p99_s),
    "gap_sd_ms": lambda m: 1e3 * m.client.gap_sd_s,
    "gap_p99_ms": lambda m: 1e3 * m.client.gap_p99_s,
    "e2e_p99_ms": lambda m: 1e3 * m.client.e2e_p99_s,
    "tokens_per_s": lambda m: m.client.tokens / m.client.wall_s,
    "requests_per_s": lambda m: m.client.done / m.client.wall_s,
    "client_us": lambda m: 1e6 * m.client.cpu_s / m.units,
    "redis_commands": lambda m: m.redis.get("commands", math.nan) / m.units,
    "redis_bytes": lambda m: (
        (m.redis.get("net_input_bytes", math.nan) + m.redis.get("net_output_bytes", math.nan))
        / m.units
    ),
}
"""How to compute each figure; `_us`, commands and bytes are per token or request."""


class Figures:
    """Computes figures of one run's results."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._by_point_and_system: dict[tuple[str, str], dict[int, Measurement]] = {}
        for m in results.measurements:
            self._by_point_and_system.setdefault((m.point, m.system), {})[m.round] = m

    @property
    def systems(self) -> list[str]:
        """Names of the measured systems, in the order of the run."""
        return list(dict.fromkeys(m.system for m in self.results.measurements))

    @property
    def points(self) -> list[str]:
        """Names of the measured points, in the order of the run."""
        return list(dict.fromkeys(m.point for m in self.results.measurements))

    def measured(self, point: str, system: str) -> Sequence[Measurement]:
        """Return the measurements of a system at a point, one per round."""
        return list(self._by_point_and_system.get((point, system), {}).values())

    def processes(self, system: str) -> list[str]:
        """Return the labels of a system's processes, those with role `front` first."""
        roles: dict[str, str] = {}
        for m in self.results.measurements:
            if m.system == system:
                roles |= m.roles
        return sorted(roles, key=lambda label: (roles[label] != "front", label))

    def of(self, point: str, system: str, quantity: Quantity | str) -> Spread | None:
        """Return the spread of a figure over the rounds; None if it was not measured."""
        measure = _quantity(quantity)
        return spread(measure(m) for m in self.measured(point, system))

    def process(self, point: str, system: str, label: str) -> Spread | None:
        """Return CPU microseconds per token or request of one process."""
        return self.of(point, system, lambda m: m.process_us(label))

    def ratio(
        self,
        point: str,
        system: str,
        numerator: str,
        denominator: str = "total_us",
        base: str = BASE,
    ) -> Spread | None:
        """Return `numerator` of a system / `denominator` of `base`, paired by round."""
        return self._paired((point, system, numerator), (point, base, denominator), _divide)

    def time_ratio(self, point: str, system: str, quantity: str) -> Spread | None:
        """Return a wall time of a system / that of `direct`, of undisturbed rounds only."""
        return self._undisturbed(point, system, quantity, _divide)

    def time_difference(
        self, point: str, system: str, quantity: str, base: str = BASE
    ) -> Spread | None:
        """Return a wall time of a system minus that of `base`, of undisturbed rounds only."""
        return self._undisturbed(point, system, quantity, lambda a, b: a - b, base)

    def _undisturbed(
        self, point: str, system: str, quantity: str, combine: Combine, base: str = BASE
    ) -> Spread | None:
        """Combine wall times of the rounds in which the host took at most 5 % of CPU time.

        A host that takes a CPU away for tens of milliseconds decides a wall time. None if too few
        such rounds are left.
        """
        ours, theirs = (self._by_point_and_system.get((point, name), {}) for name in (system, base))
        undisturbed = {
            round_index
            for round_index in ours.keys() & theirs.keys()
            if max(ours[round_index].stolen, theirs[round_index].stolen) <= _MAX_STOLEN
        }
        if len(undisturbed) < min(_MIN_PAIRS, len(ours)):
            return None
        return self._paired(
            (point, system, quantity), (point, base, quantity), combine, undisturbed.__contains__
        )

    def growth(self, system: str, quantity: str, point: str, smaller: str) -> Spread | None:
        """Return a figure at `point` / the same figure at `smaller`, paired by round."""
        return self._paired((point, system, quantity), (smaller, system, quantity), _divide)

    def _paired(
        self,
        left: tuple[str, str, str],
        right: tuple[str, str, str],
        combine: Combine,
        counts: Callable[[int], bool] = lambda round_index: True,
    ) -> Spread | None:
        ours = self._by_point_and_system.get(left[:2], {})
        theirs = self._by_point_and_system.get(right[:2], {})
        measure, measure_base = _quantity(left[2]), _quantity(right[2])
        pairs = [
            (measure(ours[round_index]), measure_base(theirs[round_index]))
            for round_index in ours
            if round_index in theirs and counts(round_index)
        ]
        return spread(combine(a, b) for a, b in pairs)


def _divide(a: float, b: float) -> float:
    return a / b if b else math.nan


def _quantity(quantity: Quantity | str) -> Quantity:
    return QUANTITIES[quantity] if isinstance(quantity, str) else quantity
