"""The targets: a limit and a goal for each figure of `flotilla`. Pure.

A target is met if the median over the rounds is at most the limit. A target is not evaluated if its
system or point was not measured, nor a wall time if the machine's host took too much CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from load_tests.bench.figures import BASE, Figures
from load_tests.harness.spread import Spread, spread

PRODUCT = "flotilla"

Figure = Callable[[Figures], Spread | None]


class Verdict(Enum):
    """Whether a figure reaches its goal or its limit."""

    GOAL = "goal reached"
    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"

    @classmethod
    def of(cls, value: float, limit: float, goal: float) -> Verdict:
        """Return the verdict on a value; smaller is better."""
        if value > limit:
            return cls.MISSED
        return cls.GOAL if value <= goal else cls.MET


@dataclass(frozen=True, slots=True)
class Target:
    """Limit and goal of one figure; smaller is better."""

    name: str
    limit: float
    """The target is missed above it."""
    goal: float
    figure: Figure
    unit: str = ""
    """Unit of the figure; empty for a ratio."""
    beside: str = ""
    """The system with which the figure compares; empty: `direct`, or none."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A target, the measured figure, and the verdict."""

    target: Target
    measured: Spread | None
    verdict: Verdict

    def __str__(self) -> str:
        """Return figure and limit as text."""
        unit = f" {self.target.unit}" if self.target.unit else ""
        if self.measured is None:
            return f"{self.target.name}: not measured"
        limit = f"limit {self.target.limit:g}{unit}"
        return f"{self.target.name} {self.measured.median:.2f}{unit}, {limit}"


def _front(point: str) -> Figure:
    return lambda figures: figures.ratio(point, PRODUCT, "front_us")


def _total(point: str, base: str = BASE) -> Figure:
    return lambda figures: figures.ratio(point, PRODUCT, "total_us", base=base)


def _added_ttft(point: str) -> Figure:
    return lambda figures: figures.time_difference(point, PRODUCT, "ttft_p50_ms")


def _known(of: Callable[[Figures], Mapping[str, float]], name: str, unit: float) -> Figure:
    return lambda figures: spread(value / unit for key, value in of(figures).items() if key == name)


BEFORE = "flotilla-before"
"""Another checkout of Flotilla as a system."""
_REQUEST = "CPU per short request"
_LOG = "Redis log per token"
_STREAM = "gateway memory per open stream without tokens"

TARGETS = (
    Target("CPU per token, front / direct", 0.50, 0.40, _front("c64")),
    Target("CPU per token, total / direct", 1.00, 0.70, _total("c64")),
    Target(f"{_REQUEST}, total / direct", 1.00, 0.70, _total("req64")),
    Target("CPU per token, total / before", 1.03, 1.0, _total("c64", BEFORE), beside=BEFORE),
    Target(f"{_REQUEST}, total / before", 1.03, 1.0, _total("req64", BEFORE), beside=BEFORE),
    Target("TTFT p50 over direct, c=1", 1.0, 0.5, _added_ttft("c1"), "ms"),
    Target("TTFT p50 over direct, c=64", 0.0, -0.5, _added_ttft("c64"), "ms"),
    Target(
        "inter-token jitter (sd) / direct, c=64",
        1.0,
        0.8,
        lambda figures: figures.time_ratio("c64", PRODUCT, "gap_sd_ms"),
    ),
    Target(
        "CPU per token, c=256 / c=64",
        1.25,
        1.0,
        lambda figures: figures.growth(PRODUCT, "total_us", "c256", "c64"),
    ),
    Target(
        _STREAM,
        16.0,
        12.0,
        _known(lambda f: f.results.stream_memory.get(PRODUCT, {}), "gateway", 1e3),
        "KB",
    ),
    Target(_LOG, 60.0, 30.0, _known(lambda f: f.results.log_bytes, PRODUCT, 1), "bytes"),
)  # fmt: skip


def evaluate(figures: Figures) -> list[TargetResult]:
    """Compare a run with all targets but those beside a system that was not measured."""
    measured = {"", *figures.systems}
    return [_evaluate(target, figures) for target in TARGETS if target.beside in measured]


def last_line(results: list[TargetResult]) -> str:
    """Return the verdict on the whole run in one line."""
    missed = [str(item) for item in results if item.verdict is Verdict.MISSED]
    if missed:
        return f"TARGETS missed: {'; '.join(missed)}"
    unknown = [item.target.name for item in results if item.verdict is Verdict.NOT_MEASURED]
    return f"TARGETS met, but not measured: {'; '.join(unknown)}" if unknown else "TARGETS met"


def _evaluate(target: Target, figures: Figures) -> TargetResult:
    measured = target.figure(figures)
    if measured is None:
        return TargetResult(target, None, Verdict.NOT_MEASURED)
    return TargetResult(target, measured, Verdict.of(measured.median, target.limit, target.goal))
