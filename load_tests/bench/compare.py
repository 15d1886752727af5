"""Compare a run with a stored baseline: only ratios to `direct`, so that any machine will do.

    python -m load_tests compare load_tests/baseline.json load_tests/results/<date>.json

Only Flotilla's own ratios. One that has grown by more than 15 % is a warning. It fails the
comparison only when it has grown by more than 25 % and the quartiles do not meet either. Whole runs
differ by more than the rounds of one, so make a baseline (`--update`) of several.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.bench.figures import Figures, Spread
from load_tests.bench.measurement import Results, load_results, parse_results
from load_tests.bench.targets import PRODUCT

HELP = "hold a result against a baseline"
WARNS_AT = 0.15
FAILS_AT = 0.25
_QUANTITIES = ("total_us", "front_us")

Ratios = Mapping[str, Spread]
"""By `<point> <system> <quantity>`; smaller is better."""


class Change(Enum):
    """What became of a ratio."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    FAILED = "FAILED"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio, then and now."""

    name: str
    change: Change
    baseline: Spread
    result: Spread | None

    def __str__(self) -> str:
        now = "-" if self.result is None else _shown(self.result)
        return f"{self.change.value:8} {self.name:32} {_shown(self.baseline)} -> {now}"


def ratios(results: Results) -> dict[str, Spread]:
    """The product's paired ratios of a run; they say something on any machine."""
    figures = Figures(results)
    found = {}
    for point in figures.points:
        for system in filter(_is_product, figures.systems):
            for quantity in _QUANTITIES:
                ratio = figures.ratio(point, system, quantity)
                if ratio is not None:
                    found[f"{point} {system} {quantity}"] = ratio
    return found


def pooled(runs: Iterable[Ratios]) -> dict[str, Spread]:
    """Several runs: the median of their medians, their lowest and their highest quartile."""
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


def _is_product(system: str) -> bool:
    return system.split("-")[0] == PRODUCT


def compare(baseline: Ratios, result: Ratios) -> list[Comparison]:
    """Every ratio of the baseline; what is new in the result is not compared."""
    return [
        Comparison(name, _change(then, result.get(name)), then, result.get(name))
        for name, then in baseline.items()
    ]


def _change(then: Spread, now: Spread | None) -> Change:
    if now is None:
        return Change.MISSING
    growth = now.median / then.median - 1
    if growth > FAILS_AT and now.low > then.high:
        return Change.FAILED
    if growth > WARNS_AT:
        return Change.WORSE
    return Change.BETTER if growth < -WARNS_AT else Change.SAME


def load_ratios(path: Path) -> dict[str, Spread]:
    """From a baseline or from a whole result. Raises OSError, ValueError."""
    data = json.loads(path.read_text())
    if "ratios" not in data:
        return ratios(parse_results(data))
    return {name: Spread(**spread) for name, spread in data["ratios"].items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", type=Path)
    parser.add_argument("result", type=Path, nargs="+", help="several are taken together")
    parser.add_argument(
        "--update", action="store_true", help="make the results the baseline instead"
    )


def main(arguments: argparse.Namespace) -> int:
    try:
        result = pooled(map(load_ratios, arguments.result))
        if arguments.update:
            _write(arguments.baseline, load_results(arguments.result[-1]).machine, result)
            return 0
        found = compare(load_ratios(arguments.baseline), result)
    except (OSError, ValueError, KeyError) as error:
        print(f"can't compare: {error!r}", file=sys.stderr)
        return 2
    for item in found:
        print(item)
    failed = [item.name for item in found if item.change is Change.FAILED]
    warned = [item.name for item in found if item.change is Change.WORSE]
    if warned:
        print(f"worse, but not beyond doubt: {', '.join(warned)}")
    print(f"BASELINE failed: {', '.join(failed)}" if failed else "BASELINE kept")
    return 1 if failed else 0


def _write(path: Path, machine: Mapping[str, Any], ratios: Ratios) -> None:
    rounded = {
        name: {key: round(value, 3) for key, value in asdict(spread).items()}
        for name, spread in ratios.items()
    }
    path.write_text(json.dumps({"machine": machine, "ratios": rounded}, indent=1) + "\n")


def _shown(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"
