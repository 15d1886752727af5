"""Measure systems at points of load, in rounds; print the tables and judge the product's targets.

Exit status 0: all targets met; 1: one missed, or a system failed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from load_tests.bench import report
from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Measurement, Results
from load_tests.bench.open_streams import measure_open_streams
from load_tests.bench.plot import plot
from load_tests.bench.points import POINTS, Point
from load_tests.bench.rounds import WrongAnswer, measure
from load_tests.bench.targets import Verdict, judge, last_line
from load_tests.harness import machine
from load_tests.harness.processes import ProcessError, Processes
from load_tests.systems.engine import EngineTiming
from load_tests.systems.peer_install import UnavailableError
from load_tests.systems.registry import PEERS, SYSTEMS

HELP = "measure and judge (the default)"
RESULTS = Path(__file__).parents[1] / "results"
_SYSTEMS = "direct,lean,flotilla,flotilla-2gw,naive"
_QUICK_SYSTEMS = "direct,lean,flotilla"
_QUICK_POINTS = "c1,c64,req64"
_QUICK_ROUNDS = 3
# As long as one point's ratios differ by a tenth from round to round, a median of few says little.
_ROUNDS = 9
_WITH_PEERS = os.environ.get("PEERS") == "1"
"""Measure other people's proxies too, and judge by them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--systems",
        help=f"of {', '.join(SYSTEMS)} (default {_SYSTEMS}; with PEERS=1 in the environment the "
        "last four too)",
    )
    parser.add_argument("--points", help=f"of {', '.join(POINTS)} (default all)")
    parser.add_argument("--rounds", type=int, help=f"the dear points get fewer (default {_ROUNDS})")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{_QUICK_ROUNDS} rounds of {_QUICK_POINTS} with {_QUICK_SYSTEMS}: a minute",
    )
    parser.add_argument("--no-memory", action="store_true", help="leave open streams out")
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/<date>)")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")


def main(arguments: argparse.Namespace) -> int:
    quick = arguments.quick
    chosen = arguments.systems or (_QUICK_SYSTEMS if quick else _SYSTEMS)
    if _WITH_PEERS and not arguments.systems:
        chosen += "".join(f",{peer.name}" for peer in PEERS)
    names = _available(_known(chosen, SYSTEMS))
    wanted = arguments.points or (_QUICK_POINTS if quick else ",".join(POINTS))
    points = [POINTS[name] for name in _known(wanted, POINTS)]
    rounds = arguments.rounds or (_QUICK_ROUNDS if quick else _ROUNDS)
    with_memory = not (arguments.no_memory or (quick and not arguments.points))
    stem = time.strftime("%Y-%m-%dT%H%M%S")
    path: Path = arguments.json or RESULTS / f"{stem}.json"
    _prepare()
    folder = Path(tempfile.mkdtemp(prefix="flotilla-load-"))
    processes = Processes(folder)
    try:
        results = _measure(processes, names, points, rounds, with_memory=with_memory)
    except (ProcessError, WrongAnswer) as error:
        print(f"{error}\n(logs: {folder})", file=sys.stderr)
        return 1
    finally:
        processes.close()
    shutil.rmtree(folder)
    results.save(path)
    return _report(results, path, markdown=arguments.markdown)


def _measure(
    processes: Processes, names: list[str], points: list[Point], rounds: int, *, with_memory: bool
) -> Results:
    results = Results(machine.describe(), [], {}, {})
    by_timing: dict[EngineTiming, list[Point]] = {}
    for point in points:
        by_timing.setdefault(point.timing, []).append(point)
    measurements: list[Measurement] = []
    for of_timing in by_timing.values():
        found, log_bytes = measure(processes, names, of_timing, rounds, _say)
        measurements += found
        for name, n_bytes in log_bytes.items():
            results.log_bytes.setdefault(name, n_bytes)
        processes.close()
    results.measurements.extend(measurements)
    if with_memory:
        results.stream_memory.update(measure_open_streams(processes, names, _say))
    return results


def _report(results: Results, path: Path, *, markdown: bool) -> int:
    figures = Figures(results)
    with_peers = _WITH_PEERS or any(SYSTEMS[name].is_peer for name in figures.systems)
    judgements = judge(figures, peers=with_peers)
    print(f"\n{report.heading(figures)}")
    for table in report.tables(figures, judgements):
        print(f"\n{table.markdown() if markdown else table.text()}")
    print(f"\nresults: {path}; {plot(figures, path.with_suffix('.png'))}")
    print(last_line(judgements))
    return 1 if any(item.verdict is Verdict.MISSED for item in judgements) else 0


def _known(text: str, all_names: Iterable[str]) -> list[str]:
    known = list(all_names)
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            sys.exit(f"there is no {name!r}; there are {', '.join(known)}")
    return names


def _available(names: list[str]) -> list[str]:
    """Without those that can't be had on this machine."""
    found = []
    for name in names:
        try:
            SYSTEMS[name].prepare()
            found.append(name)
        except UnavailableError as error:
            _say(f"{name} is left out: {error}")
    return found


def _prepare() -> None:
    """A connection is a file on both sides; and a SIGTERM ends the children too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(line, flush=True)
