"""`compare`: compare the results of a run with a stored baseline.

    python -m load_tests compare load_tests/baseline.json load_tests/results/<date>.json

Only Flotilla's ratios to `direct` are compared, which depend less on the machine than times do. A
ratio that grew by more than 15 % is a warning. It fails the comparison only if it grew by more than
25 % and the quartiles do not overlap. Whole runs differ by more than the rounds of one run, so make
a baseline (`--update`) of several runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Results, load_results, parse_results
from load_tests.bench.targets import PRODUCT
from load_tests.harness.spread import Spread, show_spread

HELP = "compare results with a stored baseline"
WARNING_GROWTH = 0.15
FAILURE_GROWTH = 0.25

Ratios = Mapping[str, Spread]
"""Ratios to `direct` by `<point> <system> <figure>`; smaller is better."""


class RatioChange(Enum):
    """How a ratio changed from the baseline to the result."""

    BETTER = "better"
    UNCHANGED = "unchanged"
    WORSE = "worse"
    FAILED = "FAILED"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class RatioComparison:
    """One ratio in the baseline and in the result."""

    name: str
    change: RatioChange
    baseline: Spread
    result: Spread | None

    def __str__(self) -> str:
        now = show_spread(self.result)
        return f"{self.change.value:9} {self.name:32} {show_spread(self.baseline)} -> {now}"


def ratios(results: Results) -> dict[str, Spread]:
    """Return Flotilla's ratios to `direct` of a run."""
    figures = Figures(results)
    found = {
        f"{point} {system} {quantity}": figures.ratio(point, system, quantity)
        for point in figures.points
        for system in figures.systems
        if system.split("-")[0] == PRODUCT
        for quantity in ("total_us", "front_us")
    }
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def pooled(runs: Iterable[Ratios]) -> dict[str, Spread]:
    """Combine runs: the median of their medians, their lowest and their highest quartile."""
    by_name: dict[str, list[Spread]] = {}
    for run in runs:
        for name, spread in run.items():
            by_name.setdefault(name, []).append(spread)
    return {
        name: Spread(
            median(spread.median for spread in spreads),
            min(spread.low for spread in spreads),
            max(spread.high for spread in spreads),
            sum(spread.n for spread in spreads),
        )
        for name, spreads in by_name.items()
    }


def compare(baseline: Ratios, result: Ratios) -> list[RatioComparison]:
    """Compare each ratio of the baseline; ratios that only the result has are ignored."""
    return [
        RatioComparison(name, _change(before, result.get(name)), before, result.get(name))
        for name, before in baseline.items()
    ]


def _change(before: Spread, now: Spread | None) -> RatioChange:
    if now is None:
        return RatioChange.MISSING
    growth = now.median / before.median - 1
    if growth > FAILURE_GROWTH and now.low > before.high:
        return RatioChange.FAILED
    if growth > WARNING_GROWTH:
        return RatioChange.WORSE
    return RatioChange.BETTER if growth < -WARNING_GROWTH else RatioChange.UNCHANGED


def load_ratios(path: Path) -> dict[str, Spread]:
    """Read the ratios of a baseline or of a result file. Raises OSError, ValueError."""
    data = json.loads(path.read_text())
    if "ratios" not in data:
        return ratios(parse_results(data))
    return {name: Spread(**spread) for name, spread in data["ratios"].items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("baseline", type=Path)
    parser.add_argument("result", type=Path, nargs="+", help="result file; several are combined")
    help_ = "write the results as the new baseline"
    parser.add_argument("--update", action="store_true", help=help_)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    try:
        result = pooled(map(load_ratios, arguments.result))
        if arguments.update:
            _write(arguments.baseline, arguments.result, result)
            return 0
        found = compare(load_ratios(arguments.baseline), result)
    except (OSError, ValueError, KeyError) as error:
        print(f"can't compare: {error!r}", file=sys.stderr)
        return 2
    for item in found:
        print(item)
    failed = [item.name for item in found if item.change is RatioChange.FAILED]
    warned = [item.name for item in found if item.change is RatioChange.WORSE]
    if warned:
        print(f"worse, but within the fluctuation or below the limit: {', '.join(warned)}")
    print(f"BASELINE failed: {', '.join(failed)}" if failed else "BASELINE kept")
    return 1 if failed else 0


def _write(path: Path, runs: Sequence[Path], ratios: Ratios) -> None:
    data = {
        "machine": load_results(runs[-1]).machine,
        "ratios": {
            name: {key: round(value, 3) for key, value in asdict(spread).items()}
            for name, spread in ratios.items()
        },
    }
    path.write_text(json.dumps(data, indent=1) + "\n")
