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
from load_tests.bench.measurement import Measurement, Results
from load_tests.bench.points import Point
from load_tests.bench.rounds import progress_line, run_point, schedule
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
from load_tests.harness.spread import show_median, show_spread
from load_tests.harness.table import Table
from load_tests.systems.engine import request_body
from load_tests.vllm.systems import VLLM_SYSTEMS, VllmServe
from tests.harness.client import http

HELP = "real vLLM with the demo model: its own server and Flotilla"
BASE = "vllm"
POINTS = {
    point.name: point
    for point in (
        Point("c1", 1, 40, 16),
        Point("c32", 32, 192, 64),
        Point("c64", 64, 384, 64),
        # For a GPU: answers of 256 tokens.
        Point("l1", 1, 4, 256),
        Point("l64", 64, 256, 256),
        Point("l256", 256, 768, 256),
        Point("l512", 512, 1024, 256),
    )
}
_DEFAULT_POINTS = "c1,c32,c64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--systems": (",".join(VLLM_SYSTEMS), "what to measure"),
        "--points": (_DEFAULT_POINTS, f"points of load, of {', '.join(POINTS)}"),
        "--model": ("", "folder of a model (default: the demo model with its options)"),
        "--engine-args": ("", "options of vLLM, as --engine-args='--enforce-eager'"),
        "--rounds": (5, "rounds"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    chosen = parse_names(arguments.systems, VLLM_SYSTEMS)
    points = [POINTS[name] for name in parse_names(arguments.points, POINTS)]
    with session() as processes:
        given = {"model": arguments.model, "engine_args": arguments.engine_args}
        systems = [VLLM_SYSTEMS[name].variant(name, **given)(processes) for name in chosen]
        for system in systems:
            system.start()
            print_progress(f"{system.name} is ready")
        _check_answers(systems)
        for system in systems:  # warm up
            _run_point(system, POINTS["c32"], 0)
        results = Results(machine.describe(), [])
        for round_index, point, system in schedule(systems, points, arguments.rounds):
            measurement = _run_point(system, point, round_index)
            print_progress(progress_line(measurement))
            results.measurements.append(measurement)
    print_tables(tables(Figures(results)))
    save_result(arguments.json, "vllm", asdict(results))
    return 0


def _run_point(system: VllmServe, point: Point, round_index: int) -> Measurement:
    """Run a point's load; measure the CPU time of the system's processes meanwhile.

    Raises WrongAnswerError, also if vLLM generated another number of tokens than clients received.
    """
    before = system.generated()
    measurement = run_point(system, point, round_index)
    generated, received = system.generated() - before, measurement.client.tokens
    if generated != received:
        raise WrongAnswerError(
            f"{system.name} generated {generated:.0f} tokens, clients received {received}"
        )
    return measurement


def _check_answers(systems: Sequence[VllmServe]) -> None:
    """Compare the systems' answers to one request. Raises WrongAnswerError if they differ."""
    texts = {}
    for system in systems:
        body = request_body(tokens=48, stream=False) | system.body_fields
        answer = http.post(f"http://127.0.0.1:{system.ports[0]}{system.path}", json=body).json()
        if "choices" not in answer:
            raise WrongAnswerError(f"{system.name}: {answer}")
        texts[system.name] = answer["choices"][0]["message"]["content"]
    if len(set(texts.values())) > 1:
        raise WrongAnswerError(f"answers differ: {texts}")


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
