"""`agree`: do `flotilla bench` and `vllm bench serve` measure the same?

Both measure the same servers in turn, every other round in reversed order, each time with new
prompts, so that no prefix cache helps. The medians of their figures over all rounds are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.agreement.runs import PROGRAMS, Setup
from load_tests.harness.processes import Processes
from load_tests.harness.session import (
    parse_names,
    print_progress,
    result_path,
    save_result,
    session,
)
from load_tests.harness.table import Table
from load_tests.systems.engine import MODEL, PACED
from load_tests.systems.flotilla import Flotilla
from load_tests.systems.system import System
from load_tests.vllm.systems import VARIANTS
from worker.demo import MODEL_NAME

HELP = "whether `flotilla bench` and `vllm bench serve` measure the same"
FIGURES = (
    "mean_ttft_ms",
    "median_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "mean_e2el_ms",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
)
"""What has to agree: means and medians; a 99th percentile differs more from run to run."""
_SIMULATED = "simulated"
_WARM_UP = -1
_THEIRS, _OURS = PROGRAMS

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The results of each program."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    known = ", ".join((_SIMULATED, *VARIANTS))
    parser.add_argument("--systems", default="simulated,vllm,fleet", help=f"of {known}")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program (default 5)")
    parser.add_argument("--num-prompts", type=int, default=200, help="requests of a run")
    parser.add_argument("--max-concurrency", type=int, default=16)
    parser.add_argument("--rate", type=float, help="requests a second; else none waits")
    parser.add_argument("--words", type=int, default=64, help="of each prompt (default 64)")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--limit", type=float, default=5.0, help="most percent (default 5)")
    parser.add_argument("--json", type=Path, help="result file (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if a figure differs by more than the limit."""
    chosen = parse_names(arguments.systems, (_SIMULATED, *VARIANTS))
    setup = Setup(
        arguments.num_prompts,
        arguments.max_concurrency,
        arguments.rate,
        arguments.words,
        arguments.output_tokens,
    )
    found: dict[str, Runs] = {}
    for name in chosen:
        with session() as processes:
            system, model = _start(processes, name)
            found[name] = _measure(name, system, model, setup, arguments.rounds)
    for name, runs in found.items():
        print(f"\n{table(name, runs, arguments.limit).render(markdown=arguments.markdown)}")
    path: Path = arguments.json or result_path("agree")
    save_result(path, {"setup": asdict(setup), "runs": found})
    print(f"\nresults: {path}")
    wrong = [
        f"{name}: {figure}"
        for name, runs in found.items()
        for figure in FIGURES
        if abs(difference(runs, figure)) > arguments.limit
    ]
    print(f"differ by more than {arguments.limit:g} %: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _start(processes: Processes, name: str) -> tuple[System, str]:
    """A running system, and the name of its model."""
    if name != _SIMULATED:
        return VARIANTS[name].start(processes), MODEL_NAME
    system = Flotilla(processes, PACED)
    system.start()
    return system, MODEL


def _measure(name: str, system: System, model: str, setup: Setup, rounds: int) -> Runs:
    runs: dict[str, list[Mapping[str, Any]]] = {program: [] for program in PROGRAMS}
    PROGRAMS[_OURS](system, model, setup, _WARM_UP)
    for index in range(rounds):
        order = list(PROGRAMS) if index % 2 == 0 else list(reversed(PROGRAMS))
        for place, program in enumerate(order):
            found = PROGRAMS[program](system, model, setup, 2 * index + place)
            runs[program].append(found)
            shown = ", ".join(f"{figure} {found[figure]:.2f}" for figure in FIGURES)
            print_progress(f"{name} {index} {program}: {shown}")
    return runs


def difference(runs: Runs, figure: str) -> float:
    """By how many percent the median of `flotilla bench` is above that of `vllm bench serve`."""
    ours, theirs = (median(run[figure] for run in runs[each]) for each in (_OURS, _THEIRS))
    return float(ours / theirs - 1) * 100


def table(name: str, runs: Runs, limit: float) -> Table:
    """The medians of both programs."""
    rows = []
    for figure in FIGURES:
        ours, theirs = (median(run[figure] for run in runs[each]) for each in (_OURS, _THEIRS))
        percent = difference(runs, figure)
        verdict = "" if abs(percent) <= limit else " !"
        rows.append([figure, f"{theirs:.2f}", f"{ours:.2f}", f"{percent:+.1f} %{verdict}"])
    title = f"{name}: medians of {len(runs[_OURS])} runs"
    return Table(title, ["figure", _THEIRS, _OURS, "difference"], rows)
