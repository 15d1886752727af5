"""What the product must reach, and what it aims at. Pure.

Every target bounds one figure of `flotilla` from above. Figures are paired within a round; a target
is met if the median is within the bound. One whose peer or point was not measured is not judged,
nor a wall time on a machine whose host gives its CPUs to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from load_tests.bench.figures import Figures, Spread, spread

PRODUCT = "flotilla"

Figure = Callable[[Figures], Spread | None]


class Verdict(Enum):
    """How a target stands."""

    AIM = "aim reached"
    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure."""

    name: str
    must: float
    aim: float
    figure: Figure
    unit: str = ""
    """Of the figure and its bounds; empty is a ratio."""
    peer: str = ""
    """The system besides `direct` that has to be measured too."""

    @property
    def digits(self) -> int:
        """Decimals that tell a figure from its bound."""
        return 3 if 0 < self.must < 0.1 else 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A target and what was measured."""

    target: Target
    measured: Spread | None
    verdict: Verdict

    def __str__(self) -> str:
        """The figure and the bound."""
        unit = f" {self.target.unit}" if self.target.unit else ""
        if self.measured is None:
            return f"{self.target.name}: not measured"
        figure = f"{self.measured.median:.{self.target.digits}f}"
        return f"{self.target.name} {figure}{unit}, must be <= {self.target.must:g}{unit}"


def _front(point: str, peer: str = "") -> Figure:
    if peer:
        return lambda figures: figures.ratio(point, PRODUCT, "front_us", "front_us", peer)
    return lambda figures: figures.ratio(point, PRODUCT, "front_us")


def _total(point: str) -> Figure:
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
    Target("gateway memory per open, silent stream", 16.0, 12.0, _stream_kb, "KB"),
    Target("Redis log per token", 60.0, 30.0, _log_bytes, "bytes"),
)


def judge(figures: Figures, *, peers: bool) -> list[Judgement]:
    """Every target that the run could be judged by: those against peers only if `peers`."""
    return [_judge(target, figures) for target in TARGETS if peers or not target.peer]


def last_line(judgements: list[Judgement]) -> str:
    """The run in one line."""
    missed = [str(item) for item in judgements if item.verdict is Verdict.MISSED]
    if missed:
        return f"TARGETS missed: {'; '.join(missed)}"
    unknown = [item.target.name for item in judgements if item.verdict is Verdict.NOT_MEASURED]
    return f"TARGETS met, but not measured: {'; '.join(unknown)}" if unknown else "TARGETS met"


def _judge(target: Target, figures: Figures) -> Judgement:
    measured = target.figure(figures)
    if measured is None:
        return Judgement(target, None, Verdict.NOT_MEASURED)
    if measured.median > target.must:
        return Judgement(target, measured, Verdict.MISSED)
    verdict = Verdict.AIM if measured.median <= target.aim else Verdict.MET
    return Judgement(target, measured, verdict)
