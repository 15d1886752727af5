"""The simulated pool keeps its books, the others do what they do by default, and ours compares."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean, pvariance

import pytest

from load_tests.autoscale.arrivals import Arrival, shapes
from load_tests.autoscale.command import (
    LAG_TARGETS,
    Case,
    Figures,
    equal_table,
    main_table,
    policies,
    simulate,
)
from load_tests.autoscale.frontier import Point, frontier
from load_tests.autoscale.policies import Fixed, Keda
from load_tests.autoscale.pool import Pool
from shared.fleet.autoscale_policy import Observation
from tests.unit.shared.test_autoscale_policy import KNOWN

SEEDS = (7,)


class Scripted:
    """So many workers from these moments on."""

    name = "scripted"
    every_s = 1.0

    def __init__(self, *steps: tuple[float, int], stops_loading: bool = False) -> None:
        self.stops_loading = stops_loading
        self.seen: list[Observation] = []
        self._steps = steps

    def wanted(self, now: Observation) -> int:
        self.seen.append(now)
        passed_s = now.at_s - self.seen[0].at_s
        return [workers for at_s, workers in self._steps if at_s <= passed_s][-1]


def jobs(*times: tuple[float, float]) -> list[Arrival]:
    return [Arrival(at_s, job_s, 50 * job_s) for at_s, job_s in times]


# --- the pool ---


def test_jobs_wait_for_a_slot_in_the_order_they_came() -> None:
    arrivals = jobs((0.5, 4), (1.5, 4), (2.5, 4), (3.5, 4))
    outcome = Pool(2, 30, 1).run(arrivals, Fixed(1), 100, there=1)
    # the slots are free at 4.5 and at 5.5
    assert outcome.waits_s == pytest.approx([0, 0, 2, 2])
    assert outcome.worker_s == pytest.approx(120)  # looks are 60 s apart


def test_a_worker_costs_from_being_asked_for_until_it_has_ended_its_jobs() -> None:
    policy = Scripted((0, 0), (10, 1), (60, 0))
    outcome = Pool(1, 30, 1).run(jobs((55.5, 20)), policy, 100, there=0)
    assert outcome.worker_s == pytest.approx(75.5 - 10)
    assert outcome.waits_s == [0]
    assert [now.draining for now in policy.seen[59:63]] == [0, 0, 1, 1]
    assert policy.seen[30].starting == 1
    assert policy.seen[50].ready == 1


@pytest.mark.parametrize(("stops_loading", "ready"), [(True, 1), (False, 0)])
def test_who_goes_first(stops_loading: bool, ready: int) -> None:
    policy = Scripted((0, 1), (10, 2), (20, 1), stops_loading=stops_loading)
    Pool(1, 30, 1).run([], policy, 25, there=1)
    assert (policy.seen[-1].ready, policy.seen[-1].starting) == (ready, 1 - ready)


def test_an_observer_sees_rates_and_means() -> None:
    policy = Scripted((0, 2))
    arrivals = jobs(*((second / 4, 2.0) for second in range(4000)))
    Pool(8, 30, 1).run(arrivals, policy, 1000, there=2)
    late = policy.seen[990]
    assert late.arrivals_per_s == pytest.approx(4, rel=0.05)
    assert late.job_s == pytest.approx(2)
    assert late.job_tokens == pytest.approx(100)
    assert (late.slots, late.running, late.waiting) == (8, 8, 0)


# --- the loads ---


def test_loads_are_the_same_for_the_same_seed() -> None:
    for shape in shapes().values():
        if shape.seconds < 7000:
            arrivals = shape.arrivals(1)
            assert arrivals == shape.arrivals(1) != shape.arrivals(2)
            assert [job.at_s for job in arrivals] == sorted(job.at_s for job in arrivals)
            assert 0 <= arrivals[0].at_s <= arrivals[-1].at_s <= shape.seconds
            assert all(job.job_s > 0 and job.tokens > 0 for job in arrivals)


def test_gusts_come_and_go() -> None:
    counts: list[int] = []
    for seed in range(20):
        arrivals = shapes()["gusts"].arrivals(seed)
        per_10_s = Counter(int(job.at_s / 10) for job in arrivals)
        counts += [per_10_s[index] for index in range(360)]
    assert fmean(counts) == pytest.approx(24, rel=0.1)
    assert pvariance(counts) > 10 * fmean(counts)  # a steady load's are as large as its mean


# --- KEDA and the HPA ---


def keda(looks: list[tuple[float, int]], target: float = 5, least: int = 0) -> list[int]:
    policy = Keda(target, least, 20)
    return [
        policy.wanted(replace(KNOWN, at_s=KNOWN.at_s + at_s, waiting=waiting))
        for at_s, waiting in looks
    ]


@pytest.mark.parametrize(
    ("looks", "replicas"),
    [
        # asleep until it polls, then at most doubled or four more
        ([(0, 0), (15, 100), (30, 100), (45, 100), (60, 100)], [0, 0, 5, 10, 20]),
        # a tenth is no difference
        ([(0, 5), (15, 5), (30, 20), (45, 21), (60, 24)], [1, 1, 4, 4, 5]),
        # down to what was advised most in 300 s, to zero when nothing was there for 300 s
        (
            [(0, 15), (15, 10), (300, 5), (315, 5), (330, 0), (599, 0), (630, 0)],
            [3, 3, 2, 1, 1, 1, 0],
        ),
    ],
)
def test_keda_and_the_hpa(looks: list[tuple[float, int]], replicas: list[int]) -> None:
    assert keda(looks) == replicas


def test_keda_keeps_the_least() -> None:
    assert keda([(at_s, 0) for at_s in range(0, 1200, 15)], least=2) == [2] * 80


def test_what_runs_counts_where_it_is_asked_for() -> None:
    now = replace(KNOWN, waiting=3, running=12)
    assert Keda(5, 1, 20).wanted(now) == 1
    assert Keda(5, 1, 20, running=True).wanted(now) == 3


# --- the comparison ---


def test_a_frontier_has_what_nothing_beats() -> None:
    found = frontier([Point(30, 1), Point(10, 99), Point(20, 9), Point(25, 12), Point(40, 1)])
    assert found.points == [(10, 99), (20, 9), (30, 1)]
    assert found.wait_s(9) is None
    assert found.wait_s(10) == pytest.approx(99)
    assert found.wait_s(15) == pytest.approx(30.6, abs=0.1)  # between 100 and 10, less one
    assert found.wait_s(1000) == 1


def test_the_tables() -> None:
    ours = Figures(1000, 0, 10, 20)
    found = {
        Case("step", 30, "Flotilla"): ours,
        Case("step", 30, "lag / 5"): Figures(1500, 0, 9, 50),
        Case("step", 30, "lag / 7"): Figures(1600, 0, 8, 50),
        Case("step", 30, "waiting + running / 6.4"): Figures(900, 0, 10.2, 50),
        Case("step", 30, "1 fixed"): Figures(900, 0, 5, 50),
        Case("step", 30, "2 fixed"): Figures(1800, 0, 1, 50),
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


def figures(shape: str, start_s: float, *names: str) -> list[Figures]:
    return [simulate(Case(shape, start_s, name), SEEDS) for name in names]


def test_every_policy_answers_every_job_of_a_burst_from_zero() -> None:
    shape = shapes()["burst"]
    arrivals = shape.arrivals(7)
    for name in ("Flotilla", "lag / 5", "waiting + running / 6.4", "3 fixed"):
        policy = policies(shape)[name]()
        there = policy.workers if isinstance(policy, Fixed) else 0
        outcome = Pool(8, 30, 7).run(arrivals, policy, shape.seconds, there)
        assert len(outcome.waits_s) == len(arrivals) == 1600
        assert (outcome.waits_s[0] == 0) is bool(there)


@pytest.mark.parametrize("start_s", [30, 120])
def test_a_burst_from_zero_costs_less_and_waits_less_than_with_lag(start_s: float) -> None:
    ours, *theirs = figures("burst", start_s, "Flotilla", "lag / 5", "waiting + running / 6.4")
    for other in theirs:
        assert ours.worker_s < other.worker_s
        assert ours.p99_s < other.p99_s


def at_our_cost(shape: str, start_s: float, *theirs: str) -> tuple[float, float | None]:
    """The 99th percentile of our wait, and of theirs at what ours costs."""
    others = figures(shape, start_s, *theirs)
    (ours,) = figures(shape, start_s, "Flotilla")
    points = (Point(other.worker_s, other.p99_s) for other in others)
    return ours.p99_s, frontier(points).wait_s(ours.worker_s)


@pytest.mark.parametrize(
    ("shape", "start_s"),
    [("step", 30), ("ramp", 30), ("ramp", 120), ("gusts", 30), ("gusts", 120)],
)
def test_at_equal_cost_jobs_wait_less_than_with_lag(shape: str, start_s: float) -> None:
    lag = (f"lag / {target:g}" for target in LAG_TARGETS)
    ours_s, theirs_s = at_our_cost(shape, start_s, *lag)
    assert theirs_s is not None
    assert ours_s < theirs_s


@pytest.mark.parametrize(("shape", "start_s"), [("gusts", 120), ("square", 120)])
def test_a_fixed_size_is_better_where_load_changes_within_a_start(
    shape: str, start_s: float
) -> None:
    fixed = (f"{workers} fixed" for workers in range(1, 13))
    ours_s, theirs_s = at_our_cost(shape, start_s, *fixed)
    assert theirs_s is not None
    assert theirs_s < ours_s
