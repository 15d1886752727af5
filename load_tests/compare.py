"""Compare a run with a stored baseline: only ratios to `direct`, so that any machine will do.

    python -m load_tests compare load_tests/baseline.json load_tests/results/<date>.json

A ratio that has grown by more than 15 % is a warning. It fails the comparison only when it has
grown by more than 25 % and the quartiles of the two runs do not meet either.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from load_tests.figures import BASE, Figures, Spread
from load_tests.measurement import Results, load_results, parse_results

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
    """The paired ratios of a run that say something on any machine."""
    figures = Figures(results)
    found = {}
    for point in figures.points:
        for system in figures.systems:
            for quantity in _QUANTITIES:
                ratio = figures.ratio(point, system, quantity)
                if system != BASE and ratio is not None and ratio.median > 0:
                    found[f"{point} {system} {quantity}"] = ratio
    return found


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
    parser.add_argument("result", type=Path)
    parser.add_argument(
        "--update", action="store_true", help="make the result the baseline instead"
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.update:
        _write(arguments.baseline, load_results(arguments.result))
        return 0
    try:
        found = compare(load_ratios(arguments.baseline), load_ratios(arguments.result))
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


def _write(path: Path, results: Results) -> None:
    rounded = {
        name: {key: round(value, 3) for key, value in asdict(spread).items()}
        for name, spread in ratios(results).items()
    }
    data = {"machine": results.machine, "ratios": rounded}
    path.write_text(json.dumps(data, indent=1) + "\n")


def _shown(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"
