"""The targets: a limit and a goal for each figure of `flotilla`. Pure.

A target is met if the median over the rounds is at most the limit. A target is not evaluated if its
peer or point was not measured, nor a wall time if the machine's host took too much CPU time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from load_tests.bench.figures import Figures
from load_tests.harness.spread import Spread, spread

PRODUCT = "flotilla"

Figure = Callable[[Figures], Spread | None]


class Verdict(Enum):
    """Whether a figure reaches its goal or its limit."""

    GOAL = "goal reached"
    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


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
    peer: str = ""
    """The system with which the figure compares; empty: `direct`, or none."""

    @property
    def digits(self) -> int:
        """Decimals with which the figure is printed."""
        return 3 if 0 < self.limit < 0.1 else 2


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
        figure = f"{self.measured.median:.{self.target.digits}f}"
        return f"{self.target.name} {figure}{unit}, limit {self.target.limit:g}{unit}"


def _front(point: str, peer: str = "") -> Figure:
    if peer:
        return lambda figures: figures.ratio(point, PRODUCT, "front_us", "front_us", peer)
    return lambda figures: figures.ratio(point, PRODUCT, "front_us")


def _total(point: str, peer: str = "") -> Figure:
    if peer:
        return lambda figures: figures.ratio(point, PRODUCT, "total_us", "total_us", peer)
    return lambda figures: figures.ratio(point, PRODUCT, "total_us")


def _added_ttft(point: str) -> Figure:
    return lambda figures: figures.time_difference(point, PRODUCT, "ttft_p50_ms")


def _stream_kb(figures: Figures) -> Spread | None:
    memory = figures.results.stream_memory.get(PRODUCT, {})
    return spread([memory["gateway"] / 1e3] if "gateway" in memory else [])


def _log_bytes(figures: Figures) -> Spread | None:
    log_bytes = figures.results.log_bytes
    return spread([log_bytes[PRODUCT]] if PRODUCT in log_bytes else [])


RUST, STACK, LITELLM = "rust-router", "production-stack", "litellm"
"""The peers' names as systems."""
BEFORE = "flotilla-before"
"""Another checkout of Flotilla as a system."""

TARGETS = (
    Target("CPU per token, front / direct", 0.50, 0.40, _front("c64")),
    Target("CPU per token, total / direct", 1.00, 0.70, _total("c64")),
    Target(f"CPU per token, front / {RUST}", 1.0, 0.78, _front("c64", RUST), peer=RUST),
    Target(f"CPU per token, front / {STACK}", 0.45, 0.30, _front("c64", STACK), peer=STACK),
    Target(f"CPU per token, front / {LITELLM}", 0.04, 0.03, _front("c64", LITELLM), peer=LITELLM),
    Target("CPU per short request, total / direct", 1.00, 0.70, _total("req64")),
    Target(
        f"CPU per short request, front / {STACK}", 0.25, 0.16, _front("req64", STACK), peer=STACK
    ),
    Target(
        f"CPU per short request, front / {LITELLM}",
        0.02,
        0.015,
        _front("req64", LITELLM),
        peer=LITELLM,
    ),
    Target("CPU per token, total / before", 1.03, 1.0, _total("c64", BEFORE), peer=BEFORE),
    Target(
        "CPU per short request, total / before", 1.03, 1.0, _total("req64", BEFORE), peer=BEFORE
    ),
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
    Target("gateway memory per open stream without tokens", 16.0, 12.0, _stream_kb, "KB"),
    Target("Redis log per token", 60.0, 30.0, _log_bytes, "bytes"),
)


def evaluate(figures: Figures) -> list[TargetResult]:
    """Compare a run with all targets but those of a peer that was not measured."""
    measured = {"", *figures.systems}
    return [_evaluate(target, figures) for target in TARGETS if target.peer in measured]


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
    if measured.median > target.limit:
        return TargetResult(target, measured, Verdict.MISSED)
    verdict = Verdict.GOAL if measured.median <= target.goal else Verdict.MET
    return TargetResult(target, measured, verdict)
