"""The figures of `load_tests fairness`."""

from __future__ import annotations

from pathlib import Path

import pytest

from load_tests.fairness import scenarios
from load_tests.fairness.difference import Call, differences
from load_tests.fairness.player import read_trace
from load_tests.fairness.scenarios import SCENARIOS, Scenario
from load_tests.harness.errors import RunError


def call(tenant: str, at_s: float, first_s: float, step_s: float, tokens: int = 11) -> Call:
    times = [first_s + n * step_s for n in range(tokens)]
    return Call(tenant, at_s, 8, tokens, token_times_s=times)


def test_equal_service_is_no_difference() -> None:
    calls = [call(tenant, at, at, 1.0) for tenant in "ab" for at in (0.0, 60.0)]
    assert differences(calls) == [0.0]


def test_who_waits_is_behind_who_is_served() -> None:
    served, waits = call("a", 0.0, 0.0, 5.0), call("b", 0.0, 70.0, 1.0)
    (first,) = differences([served, waits, call("a", 60.0, 60.0, 0.01)])
    assert first == pytest.approx(30 / 60), "b asked for 30 in this minute, and got nothing"


def test_an_answer_counts_evenly_or_token_by_token() -> None:
    answer = call("a", 0.0, 10.0, 1.0)
    assert answer.spread_evenly(0.0, 15.0) == pytest.approx(30 / 2)
    assert answer.by_token(0.0, 15.0) == 8 + 2 * 5
    assert answer.by_token(15.0, 99.0) == 2 * 6
    assert answer.by_token(0.0, 99.0) == answer.cost == 30


def test_a_trace_is_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,at_s,prompt_tokens,output_tokens\na,0.5,3,4\nb,1,5,6\n")
    assert [(c.tenant, c.at_s, c.cost) for c in read_trace(file)] == [("a", 0.5, 11), ("b", 1, 17)]
    assert len(read_trace(file, 1)) == 1


HEAD = "client,at_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", f"{HEAD}a,x,1,1\n"])
def test_a_file_that_is_no_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(RunError, match=r"trace\.csv"):
        read_trace(file)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_are_in_order_and_always_the_same(name: str) -> None:
    scenario = SCENARIOS[name]()
    assert scenario == SCENARIOS[name]()
    assert {call.tenant for call in scenario.calls} >= set(scenario.weights)


def test_shares_are_compared_with_the_weights() -> None:
    calls = [call("one", 0.0, 1.0, 1.0, 10), call("two", 0.0, 1.0, 1.0, 24)]
    scenario = Scenario("x", calls, {"one": 1.0, "two": 2.0}, (0.0, 100.0))
    table = scenarios.table(scenario, calls)
    assert [row[-2] for row in table.rows] == ["1.000", "1.000"]
    assert "1.0000" in table.title


def test_the_longest_time_without_a_start_is_shown() -> None:
    calls = [call("old", 0.0, at, 1.0, 10) for at in (5.0, 12.0, 40.0, 43.0, 90.0)]
    table = scenarios.table(Scenario("x", calls, {}, (10.0, 60.0)), calls)
    assert [row[-1] for row in table.rows] == ["47.0"], "one that begins before 10 does not count"
