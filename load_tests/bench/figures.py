"""From raw measurements to figures. Pure.

Systems are compared within a round: the ratio to the other system's value in the same round, then
the median of those ratios. A ratio of two medians would compare minutes, not systems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median, quantiles

from load_tests.bench.measurement import Measurement, Results

BASE = "direct"
"""What everything is compared with."""

_MOST_STOLEN = 0.05
_FEWEST_PAIRS = 3

Quantity = Callable[[Measurement], float]
Combine = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Several values of one thing: the median, the quartiles, and how many there were."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """None without values. NaN stands for a value that was not measured."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0], 1)
    low, _, high = quantiles(known, n=4, method="inclusive")
    return Spread(median(known), low, high, len(known))


def added_ttft_ms(measurement: Measurement, time_s: float) -> float:
    """What a time to the first token has above the engine's shortest."""
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
"""Figures by name; CPU microseconds, milliseconds, counts and bytes are per unit of the point."""


class Figures:
    """Questions to the results of one run."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._by_place: dict[tuple[str, str], dict[int, Measurement]] = {}
        for m in results.measurements:
            self._by_place.setdefault((m.point, m.system), {})[m.round] = m

    @property
    def systems(self) -> list[str]:
        """In the order of the run."""
        return list(dict.fromkeys(m.system for m in self.results.measurements))

    @property
    def points(self) -> list[str]:
        return list(dict.fromkeys(m.point for m in self.results.measurements))

    def measured(self, point: str, system: str) -> Sequence[Measurement]:
        """One per round."""
        return list(self._by_place.get((point, system), {}).values())

    def processes(self, system: str) -> list[str]:
        """The system's processes, front first."""
        roles: dict[str, str] = {}
        for m in self.results.measurements:
            if m.system == system:
                roles |= m.roles
        return sorted(roles, key=lambda label: (roles[label] != "front", label))

    def of(self, point: str, system: str, quantity: Quantity | str) -> Spread | None:
        """Over the rounds."""
        measure = _quantity(quantity)
        return spread(measure(m) for m in self.measured(point, system))

    def process(self, point: str, system: str, label: str) -> Spread | None:
        """CPU microseconds per unit of one process."""
        return self.of(point, system, lambda m: m.process_us(label))

    def ratio(
        self, point: str, system: str, above: str, below: str = "total_us", base: str = BASE
    ) -> Spread | None:
        """`above` of the system over `below` of the base, paired by round."""
        return self._paired((point, system, above), (point, base, below), _divide)

    def time_ratio(self, point: str, system: str, quantity: str) -> Spread | None:
        """Of one wall time, system over the base, paired by round; see `_undisturbed`."""
        return self._undisturbed(point, system, quantity, _divide)

    def time_difference(
        self, point: str, system: str, quantity: str, base: str = BASE
    ) -> Spread | None:
        """Of one wall time, system minus the base, paired by round; see `_undisturbed`."""
        return self._undisturbed(point, system, quantity, lambda a, b: a - b, base)

    def _undisturbed(
        self, point: str, system: str, quantity: str, combine: Combine, base: str = BASE
    ) -> Spread | None:
        """In the rounds in which the host left the machine its CPUs: where they are taken away for
        tens of milliseconds, a wall time is that. None if there are too few of them."""
        ours, theirs = (self._by_place.get((point, name), {}) for name in (system, base))
        calm = {
            n_round
            for n_round in ours.keys() & theirs.keys()
            if max(ours[n_round].stolen, theirs[n_round].stolen) <= _MOST_STOLEN
        }
        if len(calm) < min(_FEWEST_PAIRS, len(ours)):
            return None
        return self._paired(
            (point, system, quantity), (point, base, quantity), combine, calm.__contains__
        )

    def growth(self, system: str, quantity: str, point: str, smaller: str) -> Spread | None:
        """A quantity at one point over the same at another point of the same round."""
        return self._paired((point, system, quantity), (smaller, system, quantity), _divide)

    def _paired(
        self,
        left: tuple[str, str, str],
        right: tuple[str, str, str],
        combine: Combine,
        counts: Callable[[int], bool] = lambda n_round: True,
    ) -> Spread | None:
        ours = self._by_place.get(left[:2], {})
        theirs = self._by_place.get(right[:2], {})
        measure, measure_base = _quantity(left[2]), _quantity(right[2])
        pairs = [
            (measure(ours[n_round]), measure_base(theirs[n_round]))
            for n_round in ours
            if n_round in theirs and counts(n_round)
        ]
        return spread(combine(a, b) for a, b in pairs)


def _divide(a: float, b: float) -> float:
    return a / b if b else math.nan


def _quantity(quantity: Quantity | str) -> Quantity:
    return QUANTITIES[quantity] if isinstance(quantity, str) else quantity
