"""Figures are medians of ratios and differences within a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import VERSION, Measurement, Results, load_results
from load_tests.bench.points import POINTS
from load_tests.bench.rounds import schedule
from load_tests.clients.load_client import LoadResult
from load_tests.harness.session import save_result
from load_tests.harness.spread import Spread, spread
from load_tests.systems.system import System

ROLES = {"gateway": "front", "redis": "front", "engine": "engine"}
MACHINE = {"date": "today"}


def save(path: Path, results: Results) -> None:
    save_result(path, "", {"version": VERSION, **asdict(results)})


def measurement(
    system: str,
    round_index: int,
    cpu_us: Mapping[str, float],
    point: str = "c64",
    ttft_p50_s: float = 0.02,
) -> Measurement:
    """CPU in microseconds per token; 1000 tokens in a second."""
    result = LoadResult(done=10, tokens=1000, wall_s=1.0, ttft_p50_s=ttft_p50_s, gap_sd_s=0.004)
    return Measurement(
        system=system,
        point=point,
        round=round_index,
        unit="token",
        step_s=0.016,
        client=result,
        cpu_s={label: us / 1e3 for label, us in cpu_us.items()},
        roles={label: ROLES[label] for label in cpu_us},
    )


def flotilla(gateway: float, redis: float, engine: float, round_index: int = 0) -> Measurement:
    cpu = {"gateway": gateway, "redis": redis, "engine": engine}
    return measurement("flotilla", round_index, cpu)


def direct(engine: float, round_index: int = 0) -> Measurement:
    return measurement("direct", round_index, {"engine": engine})


def assert_spread(found: Spread | None, median: float, n: int) -> None:
    assert found is not None
    assert found.median == pytest.approx(median)
    assert found.n == n


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([math.nan], None),
        ([3.0], Spread(3.0, 3.0, 3.0, 1)),
        ([1.0, 2.0, 3.0, 4.0, math.nan, 5.0], Spread(3.0, 2.0, 4.0, 5)),
    ],
)
def test_spread(values: list[float], expected: Spread | None) -> None:
    assert spread(values) == expected


def test_cpu_is_divided_by_process_role_and_unit() -> None:
    m = flotilla(30, 20, 50)
    assert (m.total_us, m.front_us, m.process_us("redis")) == pytest.approx((100, 50, 20))
    assert m.process_us("proxy") == 0


def test_ratios_are_paired_before_the_median_is_taken() -> None:
    # The second round ran on a machine half as fast; the third lacks `direct`.
    rounds = [
        direct(100, 0), flotilla(20, 10, 30, 0),
        direct(200, 1), flotilla(40, 20, 60, 1),
        flotilla(900, 0, 0, 2),
    ]  # fmt: skip
    figures = Figures(Results(MACHINE, rounds))
    assert_spread(figures.ratio("c64", "flotilla", "total_us"), 0.6, 2)
    assert_spread(figures.ratio("c64", "flotilla", "front_us"), 0.3, 2)
    assert figures.ratio("c1", "flotilla", "total_us") is None
    assert figures.ratio("c64", "flotilla", "front_us", "front_us", "nginx") is None


def test_a_ratio_to_zero_is_not_measured() -> None:
    figures = Figures(Results(MACHINE, [direct(100), flotilla(20, 10, 30)]))
    assert figures.ratio("c64", "flotilla", "front_us", "front_us", "direct") is None


def test_time_to_first_token_excludes_one_engine_step() -> None:
    figures = Figures(Results(MACHINE, [direct(100)]))
    found = figures.of("c64", "direct", "ttft_p50_ms")
    assert found is not None
    assert found.median == pytest.approx(4.0)


def test_wall_times_of_rounds_with_cpu_steal_are_left_out() -> None:
    def both(round_index: int, added_s: float, stolen: float) -> list[Measurement]:
        base, ours = direct(100, round_index), measurement("flotilla", round_index, {"redis": 1.0})
        ours = replace(ours, client=replace(ours.client, ttft_p50_s=0.02 + added_s))
        return [base, replace(ours, stolen=stolen)]

    undisturbed = [*both(0, 0.001, 0.0), *both(1, 0.002, 0.05), *both(2, 0.003, 0.01)]
    figures = Figures(Results(MACHINE, [*undisturbed, *both(3, 9.0, 0.06)]))
    assert_spread(figures.time_difference("c64", "flotilla", "ttft_p50_ms"), 2.0, 3)
    assert_spread(figures.time_ratio("c64", "flotilla", "gap_sd_ms"), 1.0, 3)
    figures = Figures(Results(MACHINE, [*undisturbed[:4], *both(3, 9.0, 0.06)]))
    assert figures.time_difference("c64", "flotilla", "ttft_p50_ms") is None
    assert_spread(figures.ratio("c64", "flotilla", "total_us"), 0.01, 3)
    one = Figures(Results(MACHINE, both(0, 0.001, 0.0)))
    assert_spread(one.time_difference("c64", "flotilla", "ttft_p50_ms"), 1.0, 1)


def test_growth_compares_two_points_of_one_system() -> None:
    rounds = [
        flotilla(20, 10, 30),
        measurement("flotilla", 0, {"gateway": 20, "redis": 10, "engine": 42}, "c256"),
    ]
    found = Figures(Results(MACHINE, rounds)).growth("flotilla", "total_us", "c256", "c64")
    assert_spread(found, 1.2, 1)


def test_results_are_equal_after_saving_and_loading(tmp_path: Path) -> None:
    results = Results(
        MACHINE, [direct(100), flotilla(1, 2, 3)], {"flotilla": {"gateway": 1.0}}, {"flotilla": 2.0}
    )
    path = tmp_path / "results" / "x.json"
    save(path, results)
    loaded = load_results(path)
    assert repr(loaded) == repr(results)  # NaN is not equal to itself


def test_every_other_round_is_reversed_and_slow_points_run_less_often() -> None:
    a, b = cast(System, object()), cast(System, object())
    points = [POINTS["c64"], POINTS["c1024"]]
    ran = [(n, p.name, s) for n, p, s in schedule([a, b], points, 5)]
    assert [s for n, p, s in ran if p == "c64"] == [a, b, b, a, a, b, b, a, a, b]
    assert [(n, s) for n, p, s in ran if p == "c1024"] == [
        (0, a), (0, b), (1, b), (1, a), (2, a), (2, b),
    ]  # fmt: skip
