"""Computes the figures of the tables from raw measurements. Pure.

Systems are compared within a round: the ratio to the other system's value of the same round, then
the median of those ratios. Machines change their speed from minute to minute, so a ratio of two
medians would compare different minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, sub

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


def _redis(*names: str) -> Quantity:
    return lambda m: sum(m.redis.get(name, math.nan) for name in names) / m.units


QUANTITIES: Mapping[str, Quantity] = {
    "total_us": attrgetter("total_us"),
    "front_us": attrgetter("front_us"),
    "ttft_p50_ms": lambda m: added_ttft_ms(m, m.client.ttft_p50_s),
    "ttft_p99_ms": lambda m: added_ttft_ms(m, m.client.ttft_p99_s),
    "gap_sd_ms": lambda m: 1e3 * m.client.gap_sd_s,
    "tokens_per_s": lambda m: m.client.tokens / m.client.wall_s,
    "requests_per_s": lambda m: m.client.done / m.client.wall_s,
    "redis_commands": _redis("commands"),
    "redis_bytes": _redis("net_input_bytes", "net_output_bytes"),
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

    def of(self, point: str, system: str, quantity: str) -> Spread | None:
        """Return the spread of a figure over the rounds; None if it was not measured."""
        return spread(map(QUANTITIES[quantity], self.measured(point, system)))

    def process(self, point: str, system: str, label: str) -> Spread | None:
        """Return CPU microseconds per token or request of one process."""
        return spread(m.process_us(label) for m in self.measured(point, system))

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

    def growth(self, system: str, quantity: str, point: str, smaller: str) -> Spread | None:
        """Return a figure at `point` / the same figure at `smaller`, paired by round."""
        return self._paired((point, system, quantity), (smaller, system, quantity), _divide)

    def time_ratio(self, point: str, system: str, quantity: str) -> Spread | None:
        """Return a wall time of a system / that of `direct`, of undisturbed rounds only."""
        return self._undisturbed(point, system, quantity, _divide, BASE)

    def time_difference(
        self, point: str, system: str, quantity: str, base: str = BASE
    ) -> Spread | None:
        """Return a wall time of a system minus that of `base`, of undisturbed rounds only."""
        return self._undisturbed(point, system, quantity, sub, base)

    def _undisturbed(
        self, point: str, system: str, quantity: str, combine: Combine, base: str
    ) -> Spread | None:
        """Combine wall times of the rounds in which the host took at most 5 % of CPU time.

        A host that takes a CPU away for tens of milliseconds decides a wall time. None if too few
        such rounds are left.
        """
        ours, theirs = (self._by_point_and_system.get((point, name), {}) for name in (system, base))
        undisturbed = {
            n
            for n in ours.keys() & theirs.keys()
            if max(ours[n].stolen, theirs[n].stolen) <= _MAX_STOLEN
        }
        if len(undisturbed) < min(_MIN_PAIRS, len(ours)):
            return None
        return self._paired(
            (point, system, quantity), (point, base, quantity), combine, undisturbed
        )

    def _paired(
        self,
        left: tuple[str, str, str],
        right: tuple[str, str, str],
        combine: Combine,
        rounds: Collection[int] | None = None,
    ) -> Spread | None:
        ours, theirs = (self._by_point_and_system.get(each[:2], {}) for each in (left, right))
        measure, measure_base = QUANTITIES[left[2]], QUANTITIES[right[2]]
        return spread(
            combine(measure(ours[n]), measure_base(theirs[n]))
            for n in ours
            if n in theirs and (rounds is None or n in rounds)
        )


def _divide(a: float, b: float) -> float:
    return a / b if b else math.nan
