"""`autoscale`: cost and waits of Flotilla's autoscaling policy and others, on simulated pools.

No real time passes and no process is started. Equal seeds give equal tables.
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

from load_tests.autoscale.arrivals import LoadShape, load_shapes
from load_tests.autoscale.frontier import CostAndWait, Frontier, frontier
from load_tests.autoscale.policies import FixedPolicy, FlotillaPolicy, KedaPolicy
from load_tests.autoscale.pool import Policy, SimulatedPool
from load_tests.harness.session import OUTPUT, add_options, parse_names, print_tables
from load_tests.harness.table import Table
from shared.fleet.autoscale_types import Limits
from shared.fleet.pool_settings import PoolSettings

HELP = "simulate Flotilla's autoscaling policy, KEDA's, and fixed sizes"

SLOTS = 8
LAG_TARGETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Waiting jobs per replica; KEDA's default for Redis streams is 5."""
SHARES = (0.4, 0.6, 0.8, 1.0, 1.25, 1.5)
"""Waiting and running jobs per replica, as shares of its slots."""
_OURS = "Flotilla"
_SLOW = "Flotilla, 300 s"
_SHOWN = (_OURS, _SLOW, "lag / 5", "lag / 20", "waiting + running / 6.4")
_SLOW_S = 300.0
"""Seconds before Flotilla scales down, equal to the HPA's default."""
_WAITS = ("wait p50\ns", "p99\ns", "longest\ns")
_FAMILIES = ("lag", "waiting + running", "fixed")


class Case(NamedTuple):
    """A load on a pool with one policy."""

    shape: str
    start_s: float
    policy: str


class CaseResult(NamedTuple):
    """What a case cost and how long jobs waited, over all seeds."""

    worker_s: float
    """Mean worker-seconds."""
    p50_s: float
    p99_s: float
    max_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--shapes": (",".join(load_shapes()), "loads"),
        "--starts": ("30,120", "seconds a worker takes to start"),
        "--seeds": ("101,102,103", "of the loads"),
        "--all": (False, "print a row for every tuning"),
        "--markdown": OUTPUT["--markdown"],
    }
    add_options(parser, options)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    names = parse_names(arguments.shapes, load_shapes())
    starts = [float(start) for start in arguments.starts.split(",")]
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = [
        Case(name, start_s, policy)
        for name, start_s in product(names, starts)
        for policy in policies(load_shapes()[name])
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as executor:
        found = dict(zip(cases, executor.map(simulate, cases, [seeds] * len(cases)), strict=True))
    print_tables([main_table(found, every=arguments.all), equal_table(found)], arguments)
    return 0


def simulate(case: Case, seeds: Sequence[int]) -> CaseResult:
    """Simulate a case once per seed; return its mean cost and the percentiles of all waits."""
    shape = load_shapes()[case.shape]
    cost: list[float] = []
    waits_s: list[float] = []
    for seed in seeds:
        policy = policies(shape)[case.policy]()
        initial = policy.workers if isinstance(policy, FixedPolicy) else shape.min_workers
        pool = SimulatedPool(SLOTS, case.start_s, seed)
        outcome = pool.run(shape.arrivals(seed), policy, shape.seconds, initial)
        cost.append(outcome.worker_s)
        waits_s += outcome.waits_s
    waits_s.sort()
    median, tail = (waits_s[int(share * len(waits_s))] for share in (0.5, 0.99))
    return CaseResult(fmean(cost), median, tail, waits_s[-1])


def policies(shape: LoadShape) -> Mapping[str, Callable[[], Policy]]:
    """Return a factory of each policy for a load, by name; Flotilla's with default settings."""
    settings = PoolSettings.model_construct()
    limits = Limits(
        min=shape.min_workers,
        max=shape.max_workers,
        target_wait_s=settings.autoscale_target_wait_s,
        utilization=settings.autoscale_utilization,
        down_after_s=settings.autoscale_down_after_s,
        idle_s=settings.autoscale_idle_s,
    )
    keda = partial(KedaPolicy, min_workers=shape.min_workers, max_workers=shape.max_workers)
    made: list[Callable[[], Policy]] = [
        partial(FlotillaPolicy, limits),
        partial(FlotillaPolicy, replace(limits, down_after_s=_SLOW_S), _SLOW),
        *(partial(keda, target) for target in LAG_TARGETS),
        *(partial(keda, share * SLOTS, running=True) for share in SHARES),
        *(partial(FixedPolicy, workers) for workers in range(1, shape.max_workers + 1)),
    ]
    return {make().name: make for make in made}


def main_table(found: Mapping[Case, CaseResult], *, every: bool) -> Table:
    """Return cost and waits of the main policies, or of every tuning if `every`."""
    rows = []
    for shape, start_s in _loads(found):
        policy = {
            case.policy: figures for case, figures in found.items() if case[:2] == (shape, start_s)
        }
        ours = policy[_OURS]
        sufficient = _smallest_sufficient(policy, ours)
        for name, figures in policy.items():
            if every or name in _SHOWN or name == sufficient:
                waits = (f"{wait_s:.1f}" for wait_s in figures[1:])
                cost = f"{figures.worker_s / ours.worker_s:.2f}"
                rows.append(
                    (shape, f"{start_s:.0f}", name, f"{figures.worker_s:.0f}", cost, *waits)
                )
    head = ["load", "start\ns", "policy", "cost\nworker-s", "cost /\nFlotilla"]
    return Table("Cost, and how long jobs wait", [*head, *_WAITS], rows)


def _smallest_sufficient(policy: Mapping[str, CaseResult], ours: CaseResult) -> str | None:
    """Return the smallest fixed size with which jobs wait no longer than with Flotilla."""
    sizes = [name for name in policy if _family(name) == "fixed"]
    return next((name for name in sizes if policy[name].p99_s <= ours.p99_s), None)


def equal_table(found: Mapping[Case, CaseResult]) -> Table:
    """Return the p99 of the wait that other policies reach at Flotilla's cost, best tuning."""
    rows = []
    for shape, start_s in _loads(found):
        tunings: dict[str, list[CostAndWait]] = {family: [] for family in _FAMILIES}
        for case, figures in found.items():
            if case[:2] == (shape, start_s) and _family(case.policy) in tunings:
                tunings[_family(case.policy)].append(CostAndWait(figures.worker_s, figures.p99_s))
        ours = found[Case(shape, start_s, _OURS)]
        cells = [_compared(ours, frontier(points)) for points in tunings.values()]
        rows.append((shape, f"{start_s:.0f}", f"{ours.worker_s:.0f}", f"{ours.p99_s:.1f}", *cells))
    head = ["load", "start\ns", "cost\nworker-s", "Flotilla", *_FAMILIES]
    return Table("99th percentile of the wait at Flotilla's cost, s", head, rows)


def _compared(ours: CaseResult, theirs: Frontier) -> str:
    """Return another policy's wait and a sign; if all its tunings cost more, its cheapest."""
    wait_s = theirs.wait_s(ours.worker_s)
    if wait_s is not None:
        return f"{wait_s:.1f} {_sign(ours.p99_s, wait_s)}"
    cheapest = theirs.points[0]
    more = cheapest.cost / ours.worker_s - 1
    verdict = "+" if ours.p99_s <= cheapest.wait_s else "?"
    return f"{cheapest.wait_s:.1f} at {more:+.0%} {verdict}"


def _sign(ours_s: float, theirs_s: float) -> str:
    """Return `+` if Flotilla's wait is shorter, `-` if longer, `=` within 1 s or 5 %."""
    if math.isclose(ours_s, theirs_s, rel_tol=0.05, abs_tol=1.0):
        return "="
    return "+" if ours_s < theirs_s else "-"


def _loads(found: Mapping[Case, CaseResult]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((case.shape, case.start_s) for case in found))


def _family(policy: str) -> str:
    return "fixed" if policy.endswith("fixed") else policy.partition(" / ")[0]
