"""`run`: measure systems at points of load, in rounds; print tables and compare with the targets.

Exit status 0: all targets met. 1: a target missed, or a system failed.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from dataclasses import asdict

from load_tests.bench import report
from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Measurement, Results
from load_tests.bench.open_streams import measure_open_streams
from load_tests.bench.points import POINTS, Point
from load_tests.bench.rounds import measure
from load_tests.bench.targets import Verdict, evaluate, last_line
from load_tests.harness import machine
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.systems.engine import EngineTiming
from load_tests.systems.flotilla import SYSTEMS
from tests.harness.fleet import Stack

HELP = "measure systems and compare with the targets (the default command)"
_SYSTEMS = "direct,flotilla,flotilla-2gw"
_QUICK_SYSTEMS = "direct,flotilla"
_QUICK_POINTS = "c1,c64,req64"
_QUICK_ROUNDS = 3
# The ratios of one point differ by up to a tenth from round to round: a median of few says little.
_ROUNDS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    quick = f"{_QUICK_ROUNDS} rounds of {_QUICK_POINTS} with {_QUICK_SYSTEMS}: about a minute"
    options = {
        "--systems": (str, f"of {', '.join(SYSTEMS)} (default {_SYSTEMS})"),
        "--points": (str, f"of {', '.join(POINTS)} (default all)"),
        "--rounds": (int, f"slow points get fewer rounds (default {_ROUNDS})"),
        "--quick": (False, quick),
        "--no-memory": (False, "do not measure the memory of open streams"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    quick = arguments.quick
    chosen = arguments.systems or (_QUICK_SYSTEMS if quick else _SYSTEMS)
    names = parse_names(chosen, SYSTEMS)
    wanted = arguments.points or (_QUICK_POINTS if quick else ",".join(POINTS))
    points = [POINTS[name] for name in parse_names(wanted, POINTS)]
    rounds = arguments.rounds or (_QUICK_ROUNDS if quick else _ROUNDS)
    with_memory = not (arguments.no_memory or (quick and not arguments.points))
    _raise_file_limit()
    with session() as processes:
        results = _measure(processes, names, points, rounds, with_memory=with_memory)
    return _report(results, arguments)


def _measure(
    processes: Stack,
    names: Sequence[str],
    points: Sequence[Point],
    rounds: int,
    *,
    with_memory: bool,
) -> Results:
    results = Results(machine.describe(), [], {}, {})
    by_timing: dict[EngineTiming, list[Point]] = {}
    for point in points:
        by_timing.setdefault(point.timing, []).append(point)
    measurements: list[Measurement] = []
    for of_timing in by_timing.values():
        found, log_bytes = measure(processes, names, of_timing, rounds, print_progress)
        measurements += found
        for name, n_bytes in log_bytes.items():
            results.log_bytes.setdefault(name, n_bytes)
        processes.close()
    results.measurements.extend(measurements)
    if with_memory:
        results.stream_memory.update(measure_open_streams(processes, names, print_progress))
    return results


def _report(results: Results, arguments: argparse.Namespace) -> int:
    figures = Figures(results)
    target_results = evaluate(figures)
    print(f"\n{report.heading(figures)}")
    print_tables(report.tables(figures, target_results))
    save_result(arguments.json, "", asdict(results))
    print(last_line(target_results))
    return 1 if any(item.verdict is Verdict.MISSED for item in target_results) else 0


def _raise_file_limit() -> None:
    """Allow as many open files as possible: each connection is one on both sides."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
