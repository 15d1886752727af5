"""`vllm`: real vLLM with the demo model: `vllm serve` and a Flotilla fleet with the same engine.

The engine shares the cores with the servers in front of it, and with a model this small the servers
do a large part of all work: on a machine with few cores their CPU time decides the tokens a second.
All systems are started once and measured in turn; the others are idle meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Results
from load_tests.bench.rounds import progress_line, schedule
from load_tests.harness import machine
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import show_median, show_spread, spread
from load_tests.harness.table import Table
from load_tests.vllm.rounds import (
    DEFAULT_POINTS,
    POINTS,
    BenchServeResult,
    check_answers,
    run_bench_serve,
    run_point,
)
from load_tests.vllm.systems import VLLM_SYSTEMS, VllmServe

HELP = "real vLLM with the demo model: its own server and Flotilla"
BASE = "vllm"
_BENCH_SERVE_POINT = POINTS["c32"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--systems": (",".join(VLLM_SYSTEMS), "what to measure"),
        "--points": (DEFAULT_POINTS, f"points of load, of {', '.join(POINTS)}"),
        "--model": ("", "folder of a model (default: the demo model with its options)"),
        "--engine-args": ("", "options of vLLM, as --engine-args='--enforce-eager'"),
        "--rounds": (5, "rounds of our load client"),
        "--bench-serve-rounds": (2, "rounds of `vllm bench serve`; 0: none"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    chosen = parse_names(arguments.systems, VLLM_SYSTEMS)
    points = [POINTS[name] for name in parse_names(arguments.points, POINTS)]
    with session() as processes:
        systems = [_with_options(VLLM_SYSTEMS[name], arguments)(processes) for name in chosen]
        for system in systems:
            system.start()
            print_progress(f"{system.name} is ready")
        check_answers(systems)
        for system in systems:  # warm up
            run_point(system, POINTS["c32"], 0)
        results = Results(machine.describe(), [])
        for round_index, point, system in schedule(systems, points, arguments.rounds):
            measurement = run_point(system, point, round_index)
            print_progress(progress_line(measurement))
            results.measurements.append(measurement)
        bench_serve = _run_bench_serve(systems, arguments.bench_serve_rounds)
    print_tables([*tables(Figures(results)), bench_serve_table(bench_serve)], arguments)
    data = {**asdict(results), "bench_serve": [asdict(item) for item in bench_serve]}
    save_result(arguments.json, "vllm", data)
    return 0


def _with_options(system: type[VllmServe], arguments: argparse.Namespace) -> type[VllmServe]:
    engine_args = f"{system.engine_args} {arguments.engine_args}".strip()
    return system.variant(system.name, model=arguments.model, engine_args=engine_args)


def _run_bench_serve(systems: Sequence[VllmServe], rounds: int) -> list[BenchServeResult]:
    results: list[BenchServeResult] = []
    try:
        for round_index, point, system in schedule(systems, [_BENCH_SERVE_POINT], rounds):
            results.append(run_bench_serve(system, point, round_index))
            per_s = results[-1].tokens_per_s
            print_progress(f"{round_index} bench serve: {system.name} {per_s:.0f} tok/s")
    except WrongAnswerError as error:
        print_progress(f"`vllm bench serve` is left out: {error}")
    return results


def tables(figures: Figures) -> list[Table]:
    """Return a table per point: each system's figures, and ratios to `vllm serve` by round."""
    return [_of_point(figures, point) for point in figures.points]


def _of_point(figures: Figures, point: str) -> Table:
    systems = figures.systems

    def of(quantity: str, digits: int) -> list[str]:
        return [show_median(figures.of(point, system, quantity), digits) for system in systems]

    def ratio(quantity: str) -> list[str]:
        found = [figures.ratio(point, system, quantity, quantity, BASE) for system in systems]
        return list(map(show_spread, found))

    labels = {system: figures.processes(system) for system in systems}
    parts = [
        "+".join(show_median(figures.process(point, system, label), 0) for label in labels[system])
        for system in systems
    ]
    later = [figures.time_difference(point, each, "ttft_p50_ms", BASE) for each in systems]
    columns = {
        "system": [f"{system} ({'/'.join(labels[system])})" for system in systems],
        "tok/s": of("tokens_per_s", 0),
        f"/ {BASE}": ratio("tokens_per_s"),
        "TTFT p50\nms": of("ttft_p50_ms", 1),
        f"over {BASE}\nms": [show_spread(each, sign="+") for each in later],
        "CPU us/token\nby process": parts,
        "total": of("total_us", 0),
        f"/ {BASE} ": ratio("total_us"),
    }
    title = f"{point}: medians (quartiles) over rounds; ratios are paired within a round"
    return Table.of_columns(title, columns)


def bench_serve_table(results: Sequence[BenchServeResult]) -> Table:
    """Return the table of what `vllm bench serve` measured."""
    bases = {item.round: item for item in results if item.system == BASE}
    systems = list(dict.fromkeys(item.system for item in results))
    of = {system: [item for item in results if item.system == system] for system in systems}
    ratios = [
        spread(
            item.tokens_per_s / bases[item.round].tokens_per_s
            for item in of[system]
            if item.round in bases
        )
        for system in systems
    ]

    def median(name: str, digits: int) -> list[str]:
        found = [spread(getattr(item, name) for item in of[system]) for system in systems]
        return [show_median(each, digits) for each in found]

    columns = {
        "system": systems,
        "tok/s": median("tokens_per_s", 0),
        f"/ {BASE}": list(map(show_spread, ratios)),
        "TTFT p50\nms": median("ttft_p50_ms", 1),
        "gap p50\nms": median("itl_p50_ms", 1),
    }
    streams = f"{_BENCH_SERVE_POINT.connections} streams"
    title = f"`vllm bench serve`, {streams}, random prompts: medians over rounds"
    return Table.of_columns(title, columns)
