"""Real vLLM with the demo model on this machine: `vllm serve` beside Flotilla, the same engine.

The engine shares the cores with the servers in front of it, and with a model this small the servers
are a large part of all work: on a machine with few cores, what they save or cost shows in tokens a
second. All systems are started once and take turns; those that are not asked anything wait.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from load_tests.bench.figures import Figures, Spread, spread
from load_tests.bench.measurement import Results
from load_tests.bench.report import Table
from load_tests.bench.rounds import WrongAnswer, line
from load_tests.harness import machine
from load_tests.harness.processes import Processes
from load_tests.harness.session import default_path, names_of, save, say, session
from load_tests.vllm.rounds import POINTS, Judged, check_answers, judge, run_point
from load_tests.vllm.systems import VARIANTS, VllmSystem

HELP = "real vLLM with the demo model: its own server beside Flotilla"
BASE = "vllm"
_JUDGED = POINTS["c32"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ",".join(VARIANTS)
    parser.add_argument("--systems", default=names, help=f"of {names} (default all)")
    parser.add_argument("--points", default=",".join(POINTS), help=f"of {', '.join(POINTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="by our client (default 5)")
    parser.add_argument(
        "--judge-rounds", type=int, default=2, help="by `vllm bench serve` (default 2; 0: none)"
    )
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")


def main(arguments: argparse.Namespace) -> int:
    path: Path = arguments.json or default_path("vllm")
    chosen = names_of(arguments.systems, VARIANTS)
    points = names_of(arguments.points, POINTS)
    with session() as processes:
        systems = _start(processes, chosen)
        results = _measure(systems, points, arguments.rounds)
        judged = _judge(systems, arguments.judge_rounds)
    figures = Figures(results)
    for table in (*tables(figures), judged_table(judged)):
        if table.rows:
            print(f"\n{table.markdown() if arguments.markdown else table.text()}")
    save(path, {**asdict(results), "judged": [asdict(item) for item in judged]})
    print(f"\nresults: {path}")
    return 0


def _start(processes: Processes, names: Sequence[str]) -> list[VllmSystem]:
    systems = []
    for name in names:
        systems.append(VARIANTS[name].start(processes))
        say(f"{name} is ready")
    check_answers(systems)
    return systems


def _measure(systems: list[VllmSystem], points: Sequence[str], rounds: int) -> Results:
    for system in systems:  # warm up
        run_point(system, POINTS["c32"], 0)
    results = Results(machine.describe(), [])
    for n_round in range(rounds):
        for name in points:
            for system in systems if n_round % 2 == 0 else reversed(systems):
                measurement = run_point(system, POINTS[name], n_round)
                say(line(measurement))
                results.measurements.append(measurement)
    return results


def _judge(systems: list[VllmSystem], rounds: int) -> list[Judged]:
    judged: list[Judged] = []
    try:
        for n_round in range(rounds):
            for system in systems if n_round % 2 == 0 else reversed(systems):
                judged.append(judge(system, _JUDGED, n_round))
                say(f"{n_round} judge: {judged[-1].system} {judged[-1].tokens_per_s:.0f} tok/s")
    except WrongAnswer as error:
        say(f"no outside judge: {error}")
    return judged


def tables(figures: Figures) -> list[Table]:
    """Figures of every system, and ratios to `vllm serve` of the same round."""
    return [_of_point(figures, point) for point in figures.points]


def _of_point(figures: Figures, point: str) -> Table:
    rows = []
    for system in figures.systems:
        parts = [
            _cell(figures.process(point, system, label), 0) for label in figures.processes(system)
        ]
        rows.append(
            [
                f"{system} ({'/'.join(figures.processes(system))})",
                _cell(figures.of(point, system, "tokens_per_s"), 0),
                _spread(figures.ratio(point, system, "tokens_per_s", "tokens_per_s", BASE)),
                _cell(figures.of(point, system, "ttft_p50_ms"), 1),
                _spread(figures.time_difference(point, system, "ttft_p50_ms", BASE), "+"),
                "+".join(parts),
                _cell(figures.of(point, system, "total_us"), 0),
                _spread(figures.ratio(point, system, "total_us", base=BASE)),
            ]
        )
    head = ["system", "tok/s", f"/ {BASE}", "TTFT p50\nms", f"over {BASE}\nms"]
    head += ["CPU us/token\nby process", "total", f"/ {BASE}"]
    title = f"{point}: medians (quartiles) over rounds; ratios are paired within a round"
    return Table(title, head, rows)


def judged_table(judged: Sequence[Judged]) -> Table:
    """What the outside judge says."""
    rows = []
    bases = {item.round: item for item in judged if item.system == BASE}
    for system in dict.fromkeys(item.system for item in judged):
        items = [item for item in judged if item.system == system]
        pairs = [(item, bases[item.round]) for item in items if item.round in bases]
        rows.append(
            [
                system,
                _cell(spread(item.tokens_per_s for item in items), 0),
                _spread(spread(item.tokens_per_s / base.tokens_per_s for item, base in pairs)),
                _cell(spread(item.ttft_p50_ms for item in items), 1),
                _cell(spread(item.itl_p50_ms for item in items), 1),
            ]
        )
    title = (
        f"`vllm bench serve`, {_JUDGED.connections} streams, random prompts: medians over rounds"
    )
    return Table(title, ["system", "tok/s", f"/ {BASE}", "TTFT p50\nms", "gap p50\nms"], rows)


def _cell(of: Spread | None, digits: int) -> str:
    return "-" if of is None else f"{of.median:.{digits}f}"


def _spread(of: Spread | None, sign: str = "") -> str:
    if of is None:
        return "-"
    return f"{of.median:{sign}.2f} ({of.low:{sign}.2f}..{of.high:{sign}.2f})"
