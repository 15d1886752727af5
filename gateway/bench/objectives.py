"""Limits that a benchmark has to keep: `--goodput` for each request, `--slo` for all. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.bench.figures import METRICS, Result, percentile_key

GOODPUT = ("ttft", "tpot", "e2el")
_AT_LEAST = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_AT_MOST = ("failed",)
_UNITS_MS = {"": 1.0, "ms": 1.0, "us": 0.001, "s": 1000.0, "m": 60_000.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|)")
_STATISTIC = re.compile(r"(mean|median|p\d+(?:\.\d+)?)")


class ObjectiveError(ValueError):
    """An objective is not written as it must be; the message shows how."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit of one figure."""

    key: str
    """Of the result."""
    limit: float
    at_least: bool = False
    percentile: float | None = None
    """The percentile that the result must contain."""

    def met(self, result: Result) -> bool:
        """Whether a result keeps it; one without answers does not."""
        value = result.get(self.key)
        if value is None or not result["completed"]:
            return False
        return bool(value >= self.limit if self.at_least else value <= self.limit)

    def line(self, result: Result) -> str:
        """The outcome in words."""
        value = result.get(self.key)
        shown = "not measured" if value is None else f"{value:.2f}"
        sign = ">=" if self.at_least else "<="
        verdict = "met" if self.met(result) else "MISSED"
        return f"{self.key} {sign} {self.limit:g}: {shown}, {verdict}"


def milliseconds(text: str) -> float:
    """A duration such as `1.5s` or `300ms`; without a unit milliseconds. Raises ObjectiveError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ObjectiveError(f"{text!r} is no duration: write 300ms, 1.5s or 2m")
    return float(match[1]) * _UNITS_MS[match[2]]


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:500 e2el:2s` as milliseconds by metric, as vLLM's option. Raises ObjectiveError."""
    limits = {}
    for text in " ".join(texts).split():
        metric, colon, value = text.partition(":")
        if not colon or metric not in GOODPUT:
            raise ObjectiveError(f"{text!r}: write METRIC:MS with one of {', '.join(GOODPUT)}")
        limits[metric] = milliseconds(value)
    return limits


def parse_slo(text: str) -> Objective:
    """`ttft_p99=1.5s`, `itl_median=40ms`, `output_throughput=500`, `failed=0`.

    Raises ObjectiveError.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ObjectiveError(f"{text!r}: write NAME=VALUE, for example ttft_p99=1.5s")
    if name in (*_AT_LEAST, *_AT_MOST):
        try:
            return Objective(name, float(value), at_least=name in _AT_LEAST)
        except ValueError as error:
            raise ObjectiveError(f"{text!r}: {value!r} is no number") from error
    metric, _, statistic = name.rpartition("_")
    if metric not in METRICS or not _STATISTIC.fullmatch(statistic):
        raise ObjectiveError(
            f"{text!r}: write METRIC_STATISTIC=DURATION with one of {', '.join(METRICS)} and mean, "
            f"median or p99, or one of {', '.join((*_AT_LEAST, *_AT_MOST))} with a number"
        )
    limit = milliseconds(value)
    if not statistic.startswith("p"):
        return Objective(f"{statistic}_{metric}_ms", limit)
    share = float(statistic[1:])
    if share > 100:
        raise ObjectiveError(f"{text!r}: a percentile is at most 100")
    return Objective(percentile_key(metric, share), limit, percentile=share)
