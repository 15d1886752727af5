"""`capacity`: how far one fleet goes, by a simulation fed by one measured run.

Exit status 0. With `--validate`: 1 if a prediction is further from a real run than it may be; with
`--nodes`: 1 if a node of a cluster costs more than it may.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.capacity.measured_run import SLOTS, measure, measure_node
from load_tests.capacity.simulation import (
    Costs,
    Prediction,
    Size,
    Spread,
    cold_share,
    fit,
    simulate,
    spread_of,
)
from load_tests.harness import machine
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table

HELP = "how far one fleet goes: simulated, fed by one measured run"
MEASURED = Path(__file__).with_name("measured.json")
"""What `--measure` has written: the machine, and the runs of CALIBRATION."""
CALIBRATION = (
    Size(8, 0, 50),
    Size(2, 0, 50),
    Size(8, 16, 50),
    Size(8, 128, 50),
    Size(8, 256, 100),
    Size(8, 64, 10),
    Size(8, 128, 60, tokens=16),
    Size(8, 128, 20, gateways=4),
    Size(8, 8, 1, tokens=2000),
    Size(8, 256, 1, tokens=2000),
)
"""One fleet of eight workers: idle (and two, to tell what each costs); few and many streams; more
steps; short answers; more gateways; as many steps as the machine can make, with narrow and
with wide batches."""
VALIDATION = (Size(4, 128, 30), Size(16, 256, 100))
SHARES = {"p50": 0.5, "p99": 0.99}
SEEDS = range(9)
"""Which steps come together depends on the seed, so the ages of all seeds count."""
ALLOWED_OFF = {"redis cores": 0.15, "gateway cores": 0.15, "p99 ms": 0.30}
"""How far a prediction may be off."""
Run = Mapping[str, Any]
"""What `measure` has returned."""
Pairs = dict[tuple[str, str], list[tuple[float, float]]]
"""By fleet and figure: what it was, and what was predicted, in each round."""
NODES, PER_NODE, NODE_OVER = (1, 2, 3), Size(4, 32, 10, tokens=300), 1.15
"""Clusters, the part of the fleet for each of their nodes, and how far above its share of the cost
of an only node that of each may be."""
WORKERS, MASTERS = (1, 10, 50, 100, 250, 500, 1000), (1, 2, 4, 8, 16)
FULL, SATURATED = 0.6, 0.95
"""The load of a core that is planned with, and the one from which calls wait ever longer."""
MAX_CLIENTS = 10_000
"""Redis' own default."""
MORE_SHARDS = 3
"""Connections of a worker to each master but its home's; assumed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--measure": (False, "measure the costs on this machine first, and store them"),
        "--validate": (False, "run two other sizes on this machine, and predict them"),
        "--nodes": (0, "so many rounds: what a node of one, two and three masters costs"),
        "--seconds": (10.0, "length of each measured run"),
        "--rounds": (1, "of these measured runs; medians count"),
        "--steps": (40, "engine steps a second of each worker"),
        "--tokens": (300, "tokens of an answer"),
        "--near": (0, "how many gateways the streams of a worker come from; 0: all"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if arguments.nodes:
        table, good = node_table(measure_nodes(arguments.nodes, arguments.seconds))
        print_tables([table], arguments)
        save_result(arguments.json, "nodes", {table.title: table.rows})
        return 0 if good else 1
    sizes = CALIBRATION * arguments.measure
    if arguments.validate:  # in the middle, so that the machine's speed is most like the others'
        sizes = (*sizes[:5], *VALIDATION, *sizes[5:])
    rounds = [_measured(sizes, arguments.seconds) for _ in range(arguments.rounds * bool(sizes))]
    if arguments.measure:
        of_size = zip(*(_of(CALIBRATION, each) for each in rounds), strict=True)
        asked = ["git", "-C", str(MEASURED.parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        MEASURED.write_text(json.dumps({
            "command": " ".join(sys.argv[1:]), "commit": commit, "machine": machine.describe(),
            "runs": list(map(_median_run, of_size)),
        }) + "\n")  # fmt: skip
    stored = json.loads(MEASURED.read_text())
    runs: list[Run] = stored["runs"]
    costs, spread = fit(runs), spread_of(runs)
    added = beyond(runs, costs, spread)
    if arguments.validate:
        parts = ((_of(CALIBRATION, each) or runs, _of(VALIDATION, each)) for each in rounds)
        table, good = judge(compare(parts))
    else:
        table, good = predict(arguments, costs, spread, added, runs[0]["connections"]), True
    print_tables([cost_table(costs), table], arguments)
    print(f"\nlatency beyond the simulated one: {added} us")
    found = {"costs": costs, table.title: table.rows, "rounds": rounds}
    save_result(arguments.json, "capacity", found)
    return 0 if good else 1


def measure_nodes(rounds: int, seconds: float) -> dict[int, list[float]]:
    """Return what a node costs per token of the whole fleet, in each round, by the number of nodes;
    all have equal loads."""
    costs: dict[int, list[float]] = {masters: [] for masters in NODES}
    for n in range(rounds):
        for masters, found in costs.items():
            workers, streams = PER_NODE.workers * masters, PER_NODE.streams * masters
            size = replace(PER_NODE, workers=workers, streams=streams)
            with session() as processes:
                found.append(measure_node(processes, size, masters, seconds))
        print_progress(f"{n + 1}: " + ", ".join(f"{each[-1]:.2f} us" for each in costs.values()))
    return costs


def node_table(costs: Mapping[int, list[float]]) -> tuple[Table, bool]:
    """Return the costs beside those of an only node; and whether each is near its share of it."""
    rows, good = [], True
    for masters, found in costs.items():
        ratios = [cost / single for cost, single in zip(found, costs[1], strict=True)]
        ratio, limit = median(ratios), NODE_OVER / masters
        good = good and ratio <= limit
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([str(masters), f"{median(found):.2f}", f"{ratio:.3f}", spread, f"{limit:.3f}"])
    head = ["masters", "CPU us\nper token", "ratio to\nan only node's", "rounds", "limit"]
    return Table("The node that spends most CPU time, medians", head, rows), good


def _measured(sizes: Iterable[Size], seconds: float) -> list[Run]:
    runs: list[Run] = []
    for size in sizes:
        with session() as processes:
            run = measure(processes, size, seconds)
        cores = {part: round(cpu_s / run["seconds"], 3) for part, cpu_s in run["cpu_s"].items()}
        print_progress(f"{size} {cores} {run['ages_us']} stolen {run['stolen']:.0%}")
        runs.append(run)
    return runs


def _of(sizes: Collection[Size], runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if Size(**run["size"]) in sizes]


def _median_run(found: Sequence[Run]) -> Run:
    return sorted(found, key=lambda run: sum(run["cpu_s"].values()))[len(found) // 2]


def cost_table(costs: Costs) -> Table:
    """Return the costs: a row for each part, a column for what they are spent for."""
    names = dict.fromkeys(name for of in costs.values() for name in of)
    columns = {name: [f"{of.get(name, 0):.1f}" for of in costs.values()] for name in names}
    return Table.of_columns("CPU microseconds", {"": list(costs), **columns})


def beyond(runs: Iterable[Run], costs: Costs, spread: Spread) -> dict[str, float]:
    """Return how much older tokens were than simulated, in microseconds: scheduling, mostly.

    Medians over those measured runs in which the engines kept their pace.
    """
    differences: dict[str, list[float]] = {name: [] for name in SHARES}
    for run in runs:
        if run["size"]["streams"] and run["size"]["step_ms"] > 1:
            found, _ = _local(run, costs, spread)
            for name, age_us in found.items():
                differences[name].append(run["ages_us"][name] - age_us)
    return {name: max(0.0, median(each)) for name, each in differences.items()}


def _local(run: Run, costs: Costs, spread: Spread) -> tuple[dict[str, float], Prediction]:
    """Return the simulated ages of a measured run, over SEEDS, and the last simulation."""
    ages_us: list[float] = []
    for n in SEEDS:
        found = simulate(Size(**run["size"]), 1, costs, spread, run["seconds"], local=True, seed=n)
        ages_us += found.ages_us
    return {name: percentile(ages_us, share) for name, share in SHARES.items()}, found


def compare(rounds: Iterable[tuple[Sequence[Run], Sequence[Run]]]) -> Pairs:
    """Return real and predicted figures of measured fleets.

    A round: the runs by which it is predicted, and those that are.
    """
    pairs: Pairs = {}
    for calibration, runs in rounds:
        costs, spread = fit(calibration), spread_of(calibration)
        added = beyond(calibration, costs, spread)
        for run in runs:
            size, (ages_us, found) = Size(**run["size"]), _local(run, costs, spread)
            fleet = f"{size.workers} workers, {size.streams} streams, {size.step_ms:g} ms"
            for part in ("redis", "gateway"):
                cores = run["cpu_s"][part] / run["seconds"], found.cores[part]
                pairs.setdefault((fleet, f"{part} cores"), []).append(cores)
            for name, age_us in ages_us.items():
                ages_ms = run["ages_us"][name] / 1e3, (age_us + added[name]) / 1e3
                pairs.setdefault((fleet, f"{name} ms"), []).append(ages_ms)
    return pairs


def judge(pairs: Pairs) -> tuple[Table, bool]:
    """Return the medians over rounds, and whether no prediction is further off than it may be.

    As the machine's speed changes between rounds, what is off is the median of their ratios.
    """
    rows, good = [], True
    for (fleet, name), each in pairs.items():
        ratios = [predicted / real - 1 for real, predicted in each]
        figures = [f"{median(column):.3f}" for column in zip(*each, strict=True)]
        spread_text = f"{min(ratios):+.0%} to {max(ratios):+.0%}"
        rows.append([fleet, name, *figures, f"{median(ratios):+.0%}", spread_text])
        good = good and abs(median(ratios)) <= ALLOWED_OFF.get(name, math.inf)
    head = ["fleet", "", "real", "predicted", "off", "rounds"]
    return Table("Real and predicted, medians", head, rows), good


def predict(
    arguments: argparse.Namespace,
    costs: Costs,
    spread: Spread,
    added: Mapping[str, float],
    connections: Mapping[str, float],
) -> Table:
    """Simulate fleets of 1 to 1,000 workers on 1 to 16 masters; `added`: see `beyond`.

    `connections`: those of a worker and of a gateway to one master.
    """
    head = ["workers", "masters", "tokens/s", "gateways", "gateway\ncores", "Redis\ncores",
            "cores of the\nbusiest master", "connections\nof a master", "added ms\np50", "p99",
            "first bottleneck,\nshare of its limit"]  # fmt: skip
    rows = []
    for workers, masters in ((w, m) for w in WORKERS for m in MASTERS if m <= w):
        step_ms, streams = 1e3 / arguments.steps, workers * SLOTS
        size = Size(workers, streams, step_ms, arguments.tokens, near=arguments.near)
        size = replace(size, gateways=gateways_for(size, costs))
        found = simulate(size, masters, costs, spread, 1.0)
        home = workers / masters
        clients = home * connections["worker"] + (workers - home) * MORE_SHARDS
        clients += size.gateways * connections["gateway"]
        busiest = found.busiest["redis"]
        ages = [
            f"{(percentile(found.ages_us, share) + added[name]) / 1e3:.1f}"
            for name, share in SHARES.items()
        ]
        limits = {"Redis' core": busiest / FULL, "connections": clients / MAX_CLIENTS}
        first = max(limits, key=lambda name: limits[name])
        rows.append([
            str(workers), str(masters), f"{streams * arguments.steps:,}", str(size.gateways),
            f"{found.cores['gateway']:.1f}", f"{found.cores['redis']:.2f}", f"{busiest:.2f}",
            f"{clients:,.0f}", *(["-", "-"] if busiest > SATURATED else ages),
            f"{first} {limits[first]:.0%}",
        ])  # fmt: skip
    title = f"{SLOTS} streams a worker, of {arguments.near or 'all'} gateways"
    return Table(f"{title}, {arguments.steps} steps/s", head, rows)


def gateways_for(size: Size, costs: Costs) -> int:
    """Return the fewest gateways of which none has more to do than is planned with."""
    of, a_second = costs["gateway"], 1e3 / size.step_ms
    frame_us = of["frame"] + of["cold"] * cold_share(size.step_ms) + of["request"] / size.tokens
    each = size.streams / size.workers

    def work(gateways: int) -> float:
        near = min(size.near or gateways, gateways)
        reached = near / gateways * (1 - (1 - 1 / near) ** each)  # share of the steps
        steps: float = size.workers * a_second * reached
        frames = size.streams * a_second / gateways
        return steps * of["message"] + frames * frame_us + of["second"]

    return next((n for n in range(1, size.streams) if work(n) <= FULL * 1e6), size.streams)
