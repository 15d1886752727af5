"""Median and quartiles of repeated measurements, and how tables show them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

NOT_MEASURED = "-"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lower and upper quartile of `n` values."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """Summarize values; NaN means "not measured" and is left out. None if no value remains."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0], 1)
    low, _, high = quantiles(known, n=4, method="inclusive")
    return Spread(median(known), low, high, len(known))


def show_median(of: Spread | None, digits: int) -> str:
    """Format the median alone; `-` if nothing was measured."""
    return NOT_MEASURED if of is None else f"{of.median:.{digits}f}"


def show_spread(of: Spread | None, digits: int = 2, sign: str = "") -> str:
    """Format as `median (low..high)`, or the median alone if there was one value.

    `sign` is `+` to show the sign of positive medians too.
    """
    if of is None:
        return NOT_MEASURED
    shown = f"{of.median:{sign}.{digits}f}"
    if of.n == 1:
        return shown
    return f"{shown} ({of.low:{sign}.{digits}f}..{of.high:{sign}.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile (nearest rank; `share` is 0 to 1); NaN of no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
