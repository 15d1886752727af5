"""Targets: figures within and beyond their limit, and the last line of a run."""

from __future__ import annotations

import pytest

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Measurement, Results
from load_tests.bench.report import tables
from load_tests.bench.targets import TARGETS, Verdict, evaluate, last_line
from tests.unit.load_tests.test_figures import direct, flotilla, measurement

MACHINE = {"date": "today"}
FRONT = "CPU per token, front / direct"


def verdicts(rounds: list[Measurement]) -> dict[str, Verdict]:
    results = evaluate(Figures(Results(MACHINE, rounds)))
    return {item.target.name: item.verdict for item in results}


@pytest.mark.parametrize(
    ("front_us", "verdict"),
    [(40, Verdict.GOAL), (41, Verdict.MET), (50, Verdict.MET), (51, Verdict.MISSED)],
)
def test_a_figure_is_compared_with_limit_and_goal(front_us: float, verdict: Verdict) -> None:
    assert verdicts([direct(100), flotilla(front_us, 0, 20)])[FRONT] is verdict


def test_a_figure_that_was_not_measured_has_no_verdict() -> None:
    found = verdicts([direct(100)])
    assert set(found.values()) == {Verdict.NOT_MEASURED}


@pytest.mark.parametrize("peer", sorted({each.peer for each in TARGETS if each.peer}))
def test_a_peer_is_compared_only_if_it_was_measured(peer: str) -> None:
    of_peer = {target.name for target in TARGETS if target.peer == peer}
    assert not of_peer & set(verdicts([direct(100)]))
    assert of_peer < set(verdicts([direct(100), measurement(peer, 0, {"gateway": 1})]))


def test_flotilla_is_compared_with_the_checkout_before() -> None:
    rounds = [
        flotilla(50, 10, 20),
        measurement("flotilla-before", 0, {"gateway": 40, "engine": 40}),
    ]
    assert verdicts(rounds)["CPU per token, total / before"] is Verdict.GOAL
    rounds[1] = measurement("flotilla-before", 0, {"gateway": 37, "engine": 40})
    assert verdicts(rounds)["CPU per token, total / before"] is Verdict.MISSED


def test_flotillas_front_is_compared_with_a_peers_front() -> None:
    router = measurement("rust-router", 0, {"gateway": 61, "engine": 100})
    found = verdicts([direct(100), flotilla(50, 10, 20), router])
    assert found["CPU per token, front / rust-router"] is Verdict.MET


def test_latency_is_a_difference_to_direct() -> None:
    slow = measurement("flotilla", 0, {"engine": 1}, "c1", ttft_p50_s=0.0211)
    base = measurement("direct", 0, {"engine": 1}, "c1", ttft_p50_s=0.02)
    assert verdicts([slow, base])["TTFT p50 over direct, c=1"] is Verdict.MISSED


def test_the_last_line_names_figure_and_limit() -> None:
    results = Results(MACHINE, [direct(100), flotilla(60, 10, 20)])
    missed = last_line(evaluate(Figures(results)))
    assert missed == ("TARGETS missed: CPU per token, front / direct 0.70, limit 0.5"), (
        "total is 0.90 and within 1.00"
    )


def test_the_last_line_of_a_run_that_meets_all_targets() -> None:
    results = Results(MACHINE, [direct(100), flotilla(20, 10, 20)], {"flotilla": {"gateway": 9e3}})
    line = last_line(evaluate(Figures(results)))
    assert line.startswith("TARGETS met, but not measured: CPU per short request")
    assert "memory" not in line


def test_tables_have_a_row_for_every_system_and_target() -> None:
    figures = Figures(Results(MACHINE, [direct(100), flotilla(20, 10, 30)]))
    results = evaluate(figures)
    growth, main, targets = tables(figures, results)
    assert [row[0] for row in main.rows] == ["direct", "flotilla"]
    assert len(growth.rows) == 2
    assert len(targets.rows) == len(results)
    assert "20+10+30" in main.text()
    for table in (growth, main, targets):
        columns = {line.count("|") for line in table.markdown().splitlines()[2:]}
        assert columns == {len(table.head) + 1}
