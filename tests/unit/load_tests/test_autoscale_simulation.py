"""The simulated pool, KEDA's policy, and the comparison of Flotilla's policy with others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean, pvariance

import pytest

from load_tests.autoscale.arrivals import Arrival, load_shapes
from load_tests.autoscale.command import (
    LAG_TARGETS,
    Case,
    CaseResult,
    equal_table,
    main_table,
    policies,
    simulate,
)
from load_tests.autoscale.frontier import CostAndWait, frontier
from load_tests.autoscale.policies import FixedPolicy, KedaPolicy
from load_tests.autoscale.pool import SimulatedPool
from shared.fleet.autoscale_types import Observation
from tests.unit.gateway.test_autoscale_policy import KNOWN

SEEDS = (7,)


class Scripted:
    """Sets the number of workers at given times."""

    name = "scripted"
    every_s = 1.0

    def __init__(self, *steps: tuple[float, int], stops_starting_first: bool = False) -> None:
        self.stops_starting_first = stops_starting_first
        self.seen: list[Observation] = []
        self._steps = steps

    def wanted(self, now: Observation) -> int:
        self.seen.append(now)
        passed_s = now.at_s - self.seen[0].at_s
        return [workers for at_s, workers in self._steps if at_s <= passed_s][-1]


def jobs(*times: tuple[float, float]) -> list[Arrival]:
    return [Arrival(at_s, job_s, 50 * job_s) for at_s, job_s in times]


# --- the pool ---


def test_jobs_get_slots_in_the_order_of_arrival() -> None:
    arrivals = jobs((0.5, 4), (1.5, 4), (2.5, 4), (3.5, 4))
    outcome = SimulatedPool(2, 30, 1).run(arrivals, FixedPolicy(1), 100, initial_workers=1)
    # the slots are free at 4.5 and at 5.5
    assert outcome.waits_s == pytest.approx([0, 0, 2, 2])
    assert outcome.worker_s == pytest.approx(120)  # decisions are 60 s apart


def test_a_worker_costs_from_its_request_to_the_end_of_its_jobs() -> None:
    policy = Scripted((0, 0), (10, 1), (60, 0))
    outcome = SimulatedPool(1, 30, 1).run(jobs((55.5, 20)), policy, 100, initial_workers=0)
    assert outcome.worker_s == pytest.approx(75.5 - 10)
    assert outcome.waits_s == [0]
    assert [now.draining for now in policy.seen[59:63]] == [0, 0, 1, 1]
    assert policy.seen[30].starting == 1
    assert policy.seen[50].ready == 1


@pytest.mark.parametrize(("stops_starting_first", "ready"), [(True, 1), (False, 0)])
def test_which_worker_is_stopped_first(stops_starting_first: bool, ready: int) -> None:
    policy = Scripted((0, 1), (10, 2), (20, 1), stops_starting_first=stops_starting_first)
    SimulatedPool(1, 30, 1).run([], policy, 25, initial_workers=1)
    assert (policy.seen[-1].ready, policy.seen[-1].starting) == (ready, 1 - ready)


def test_a_policy_gets_rates_and_means() -> None:
    policy = Scripted((0, 2))
    arrivals = jobs(*((second / 4, 2.0) for second in range(4000)))
    SimulatedPool(8, 30, 1).run(arrivals, policy, 1000, initial_workers=2)
    late = policy.seen[990]
    assert late.arrivals_per_s == pytest.approx(4, rel=0.05)
    assert late.job_s == pytest.approx(2)
    assert late.job_tokens == pytest.approx(100)
    assert (late.slots, late.running, late.waiting) == (8, 8, 0)


# --- the loads ---


def test_loads_are_the_same_for_the_same_seed() -> None:
    for shape in load_shapes().values():
        if shape.seconds < 7000:
            arrivals = shape.arrivals(1)
            assert arrivals == shape.arrivals(1) != shape.arrivals(2)
            assert [job.at_s for job in arrivals] == sorted(job.at_s for job in arrivals)
            assert 0 <= arrivals[0].at_s <= arrivals[-1].at_s <= shape.seconds
            assert all(job.job_s > 0 and job.tokens > 0 for job in arrivals)


def test_gusts_vary_more_than_a_steady_load() -> None:
    counts: list[int] = []
    for seed in range(20):
        arrivals = load_shapes()["gusts"].arrivals(seed)
        per_10_s = Counter(int(job.at_s / 10) for job in arrivals)
        counts += [per_10_s[index] for index in range(360)]
    assert fmean(counts) == pytest.approx(24, rel=0.1)
    assert pvariance(counts) > 10 * fmean(counts)  # a steady load's are as large as its mean


# --- KEDA and the HPA ---


def keda(polls: list[tuple[float, int]], target: float = 5, min_workers: int = 0) -> list[int]:
    policy = KedaPolicy(target, min_workers, 20)
    return [
        policy.wanted(replace(KNOWN, at_s=KNOWN.at_s + at_s, waiting=waiting))
        for at_s, waiting in polls
    ]


@pytest.mark.parametrize(
    ("polls", "replicas"),
    [
        # no replicas until KEDA polls, then at most doubled or four more
        ([(0, 0), (15, 100), (30, 100), (45, 100), (60, 100)], [0, 0, 5, 10, 20]),
        # a difference of a tenth is ignored
        ([(0, 5), (15, 5), (30, 20), (45, 21), (60, 24)], [1, 1, 4, 4, 5]),
        # down to the highest advice of 300 s; to zero after 300 s without jobs
        (
            [(0, 15), (15, 10), (300, 5), (315, 5), (330, 0), (599, 0), (630, 0)],
            [3, 3, 2, 1, 1, 1, 0],
        ),
    ],
)
def test_keda_and_the_hpa(polls: list[tuple[float, int]], replicas: list[int]) -> None:
    assert keda(polls) == replicas


def test_keda_keeps_the_minimum() -> None:
    assert keda([(at_s, 0) for at_s in range(0, 1200, 15)], min_workers=2) == [2] * 80


def test_keda_counts_running_jobs_if_configured() -> None:
    now = replace(KNOWN, waiting=3, running=12)
    assert KedaPolicy(5, 1, 20).wanted(now) == 1
    assert KedaPolicy(5, 1, 20, running=True).wanted(now) == 3


# --- the comparison ---


def test_a_frontier_has_the_tunings_that_no_other_beats() -> None:
    found = frontier(
        [
            CostAndWait(30, 1),
            CostAndWait(10, 99),
            CostAndWait(20, 9),
            CostAndWait(25, 12),
            CostAndWait(40, 1),
        ]
    )
    assert found.points == [(10, 99), (20, 9), (30, 1)]
    assert found.wait_s(9) is None
    assert found.wait_s(10) == pytest.approx(99)
    assert found.wait_s(15) == pytest.approx(30.6, abs=0.1)  # between 100 and 10, less one
    assert found.wait_s(1000) == 1


def test_tables_compare_flotilla_with_others() -> None:
    ours = CaseResult(1000, 0, 10, 20)
    found = {
        Case("step", 30, "Flotilla"): ours,
        Case("step", 30, "lag / 5"): CaseResult(1500, 0, 9, 50),
        Case("step", 30, "lag / 7"): CaseResult(1600, 0, 8, 50),
        Case("step", 30, "waiting + running / 6.4"): CaseResult(900, 0, 10.2, 50),
        Case("step", 30, "1 fixed"): CaseResult(900, 0, 5, 50),
        Case("step", 30, "2 fixed"): CaseResult(1800, 0, 1, 50),
    }
    assert equal_table(found).rows == [
        ("step", "30", "1000", "10.0", "9.0 at +50% ?", "10.2 =", "4.3 -")
    ]
    rows = main_table(found, every=False).rows
    assert [row[2] for row in rows] == [
        "Flotilla",
        "lag / 5",
        "waiting + running / 6.4",
        "1 fixed",
    ]
    assert rows[1] == ("step", "30", "lag / 5", "1500", "1.50", "0.0", "9.0", "50.0")
    assert len(main_table(found, every=True).rows) == 6


def figures(shape: str, start_s: float, *names: str) -> list[CaseResult]:
    return [simulate(Case(shape, start_s, name), SEEDS) for name in names]


def test_every_policy_runs_every_job_of_a_burst_from_zero() -> None:
    shape = load_shapes()["burst"]
    arrivals = shape.arrivals(7)
    for name in ("Flotilla", "lag / 5", "waiting + running / 6.4", "3 fixed"):
        policy = policies(shape)[name]()
        initial = policy.workers if isinstance(policy, FixedPolicy) else 0
        outcome = SimulatedPool(8, 30, 7).run(arrivals, policy, shape.seconds, initial)
        assert len(outcome.waits_s) == len(arrivals) == 1600
        assert (outcome.waits_s[0] == 0) is bool(initial)


@pytest.mark.parametrize("start_s", [30, 120])
def test_a_burst_from_zero_costs_less_and_waits_less_than_with_lag(start_s: float) -> None:
    ours, *theirs = figures("burst", start_s, "Flotilla", "lag / 5", "waiting + running / 6.4")
    for other in theirs:
        assert ours.worker_s < other.worker_s
        assert ours.p99_s < other.p99_s


def waits_at_flotillas_cost(shape: str, start_s: float, *theirs: str) -> tuple[float, float | None]:
    """Return the p99 of the wait with Flotilla, and with others at the same cost."""
    others = figures(shape, start_s, *theirs)
    (ours,) = figures(shape, start_s, "Flotilla")
    points = (CostAndWait(other.worker_s, other.p99_s) for other in others)
    return ours.p99_s, frontier(points).wait_s(ours.worker_s)


@pytest.mark.parametrize(
    ("shape", "start_s"),
    [("step", 30), ("ramp", 30), ("ramp", 120), ("gusts", 30), ("gusts", 120)],
)
def test_at_equal_cost_jobs_wait_less_than_with_lag(shape: str, start_s: float) -> None:
    lag = (f"lag / {target:g}" for target in LAG_TARGETS)
    ours_s, theirs_s = waits_at_flotillas_cost(shape, start_s, *lag)
    assert theirs_s is not None
    assert ours_s < theirs_s


@pytest.mark.parametrize(("shape", "start_s"), [("gusts", 120), ("square", 120)])
def test_a_fixed_size_is_better_where_load_changes_within_a_start(
    shape: str, start_s: float
) -> None:
    fixed = (f"{workers} fixed" for workers in range(1, 13))
    ours_s, theirs_s = waits_at_flotillas_cost(shape, start_s, *fixed)
    assert theirs_s is not None
    assert theirs_s < ours_s
