"""The autoscaler's policy beside others, on simulated pools: what it costs, how long jobs wait.

No real time passes and nothing is started. The same seeds give the same table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple

from load_tests.autoscale.arrivals import Shape, shapes
from load_tests.autoscale.frontier import Frontier, Point, frontier
from load_tests.autoscale.policies import Fixed, Flotilla, Keda
from load_tests.autoscale.pool import Policy, Pool
from load_tests.bench.report import Table
from load_tests.harness.session import names_of
from shared.fleet.autoscale_policy import Limits
from shared.platform.settings import Settings

HELP = "the autoscaler's policy beside KEDA's and fixed sizes, simulated"

SLOTS = 8
LAG_TARGETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Jobs a replica; KEDA's default for Redis streams is 5."""
SHARES = (0.4, 0.6, 0.8, 1.0, 1.25, 1.5)
"""Of the slots, the same for those that wait and run."""
_OURS = "Flotilla"
_SLOW = "Flotilla, 300 s"
_SHOWN = (_OURS, _SLOW, "lag / 5", "lag / 20", "waiting + running / 6.4")
_SLOW_S = 300.0
"""Before ours goes down, as the HPA by default."""
_WAITS = ("wait p50\ns", "p99\ns", "longest\ns")
_FAMILIES = ("lag", "waiting + running", "fixed")


class Case(NamedTuple):
    """A load on a pool, under one policy."""

    shape: str
    start_s: float
    policy: str


class Figures(NamedTuple):
    """What came out, over all seeds."""

    worker_s: float
    p50_s: float
    p99_s: float
    max_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", help=f"of {', '.join(shapes())} (default all)")
    parser.add_argument("--starts", default="30,120", help="seconds a worker takes to start")
    parser.add_argument("--seeds", default="101,102,103", help="(default 101,102,103)")
    parser.add_argument("--all", action="store_true", help="every tuning's row")
    parser.add_argument("--markdown", action="store_true", help="the tables in Markdown")


def main(arguments: argparse.Namespace) -> int:
    names = names_of(arguments.shapes, shapes()) if arguments.shapes else list(shapes())
    starts = [float(start) for start in arguments.starts.split(",")]
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = [
        Case(name, start_s, policy)
        for name, start_s in product(names, starts)
        for policy in policies(shapes()[name])
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as executor:
        found = dict(zip(cases, executor.map(simulate, cases, [seeds] * len(cases)), strict=True))
    for table in (main_table(found, every=arguments.all), equal_table(found)):
        print(f"\n{table.markdown() if arguments.markdown else table.text()}")
    return 0


def simulate(case: Case, seeds: Sequence[int]) -> Figures:
    """One case, once for each seed: the mean cost, and the waits of all jobs together."""
    shape = shapes()[case.shape]
    cost: list[float] = []
    waits_s: list[float] = []
    for seed in seeds:
        policy = policies(shape)[case.policy]()
        there = policy.workers if isinstance(policy, Fixed) else shape.least
        pool = Pool(SLOTS, case.start_s, seed)
        outcome = pool.run(shape.arrivals(seed), policy, shape.seconds, there)
        cost.append(outcome.worker_s)
        waits_s += outcome.waits_s
    waits_s.sort()
    median, tail = (waits_s[int(share * len(waits_s))] for share in (0.5, 0.99))
    return Figures(fmean(cost), median, tail, waits_s[-1])


def policies(shape: Shape) -> Mapping[str, Callable[[], Policy]]:
    """How to make each policy for a load, by name; ours with its default settings."""
    settings = Settings.model_construct()
    limits = Limits(
        min=shape.least,
        max=shape.most,
        target_wait_s=settings.autoscale_target_wait_s,
        utilization=settings.autoscale_utilization,
        down_after_s=settings.autoscale_down_after_s,
        idle_s=settings.autoscale_idle_s,
    )
    keda = partial(Keda, least=shape.least, most=shape.most)
    made: list[Callable[[], Policy]] = [
        partial(Flotilla, limits),
        partial(Flotilla, replace(limits, down_after_s=_SLOW_S), _SLOW),
        *(partial(keda, target) for target in LAG_TARGETS),
        *(partial(keda, share * SLOTS, running=True) for share in SHARES),
        *(partial(Fixed, workers) for workers in range(1, shape.most + 1)),
    ]
    return {make().name: make for make in made}


def main_table(found: Mapping[Case, Figures], *, every: bool) -> Table:
    """What each policy costs, and how long jobs wait; not all tunings unless `every`."""
    rows = []
    for shape, start_s in _loads(found):
        policy = {
            case.policy: figures for case, figures in found.items() if case[:2] == (shape, start_s)
        }
        ours = policy[_OURS]
        near = _just_enough(policy, ours)
        for name, figures in policy.items():
            if every or name in _SHOWN or name == near:
                waits = (f"{wait_s:.1f}" for wait_s in figures[1:])
                cost = f"{figures.worker_s / ours.worker_s:.2f}"
                rows.append(
                    (shape, f"{start_s:.0f}", name, f"{figures.worker_s:.0f}", cost, *waits)
                )
    head = ["load", "start\ns", "policy", "cost\nworker-s", "cost /\nours"]
    return Table("What it costs, and how long jobs wait", [*head, *_WAITS], rows)


def _just_enough(policy: Mapping[str, Figures], ours: Figures) -> str | None:
    """The smallest fixed size in which jobs wait no longer than with us."""
    sizes = [name for name in policy if _family(name) == "fixed"]
    return next((name for name in sizes if policy[name].p99_s <= ours.p99_s), None)


def equal_table(found: Mapping[Case, Figures]) -> Table:
    """The 99th percentile of the wait that the others reach at our cost, whatever their tuning."""
    rows = []
    for shape, start_s in _loads(found):
        tunings: dict[str, list[Point]] = {family: [] for family in _FAMILIES}
        for case, figures in found.items():
            if case[:2] == (shape, start_s) and _family(case.policy) in tunings:
                tunings[_family(case.policy)].append(Point(figures.worker_s, figures.p99_s))
        ours = found[Case(shape, start_s, _OURS)]
        cells = [_beside(ours, frontier(points)) for points in tunings.values()]
        rows.append((shape, f"{start_s:.0f}", f"{ours.worker_s:.0f}", f"{ours.p99_s:.1f}", *cells))
    head = ["load", "start\ns", "cost\nworker-s", "Flotilla", *_FAMILIES]
    return Table("99th percentile of the wait at Flotilla's cost, s", head, rows)


def _beside(ours: Figures, theirs: Frontier) -> str:
    """Their wait and whether ours is better; if none of theirs is as cheap, their cheapest."""
    wait_s = theirs.wait_s(ours.worker_s)
    if wait_s is not None:
        return f"{wait_s:.1f} {_sign(ours.p99_s, wait_s)}"
    cheapest = theirs.points[0]
    more = cheapest.cost / ours.worker_s - 1
    verdict = "+" if ours.p99_s <= cheapest.wait_s else "?"
    return f"{cheapest.wait_s:.1f} at {more:+.0%} {verdict}"


def _sign(ours_s: float, theirs_s: float) -> str:
    """`+` where ours is shorter, `-` where theirs is, `=` within a second or a twentieth."""
    if math.isclose(ours_s, theirs_s, rel_tol=0.05, abs_tol=1.0):
        return "="
    return "+" if ours_s < theirs_s else "-"


def _loads(found: Mapping[Case, Figures]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((case.shape, case.start_s) for case in found))


def _family(policy: str) -> str:
    return "fixed" if policy.endswith("fixed") else policy.partition(" / ")[0]
