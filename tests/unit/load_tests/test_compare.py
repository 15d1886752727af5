"""Comparing a run with a baseline: noise passes, a clear growth fails."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from load_tests.bench import compare as command
from load_tests.bench.compare import RatioChange, compare, load_ratios, pooled, ratios
from load_tests.bench.measurement import Results
from load_tests.harness.spread import Spread
from tests.unit.load_tests.test_figures import direct, flotilla, measurement, save

NAME = "c64 flotilla total_us"


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ((1.0, 0.9, 1.1), (1.1, 1.0, 1.2), RatioChange.UNCHANGED),
        ((1.0, 0.9, 1.1), (1.2, 1.19, 1.21), RatioChange.WORSE),  # clear, but below 25 %
        ((1.0, 0.9, 1.1), (1.3, 1.2, 1.4), RatioChange.FAILED),
        (
            (1.0, 0.9, 1.25),
            (1.3, 1.2, 1.4),
            RatioChange.WORSE,
        ),  # the quartiles overlap
        ((1.0, 0.9, 1.1), (0.8, 0.7, 0.9), RatioChange.BETTER),
        ((1.0, 0.9, 1.1), None, RatioChange.MISSING),
    ],
)
def test_change(
    before: tuple[float, float, float], now: tuple[float, float, float] | None, change: RatioChange
) -> None:
    result = {NAME: Spread(*now, 5)} if now else {}
    (found,) = compare({NAME: Spread(*before, 5)}, result)
    assert found.change is change
    assert NAME in str(found)


def test_only_flotillas_ratios_are_compared() -> None:
    naive = measurement("naive", 0, {"gateway": 100, "engine": 100})
    results = Results({}, [direct(100), naive, flotilla(20, 10, 30)])
    assert {name: spread.median for name, spread in ratios(results).items()} == {
        "c64 flotilla total_us": pytest.approx(0.6),
        "c64 flotilla front_us": pytest.approx(0.3),
    }


def test_a_baseline_of_several_runs_spans_their_spread() -> None:
    runs = [{NAME: Spread(x, x - 0.1, x + 0.1, 5)} for x in (0.8, 1.2, 0.9)]
    before = pooled(runs)
    assert before == {NAME: Spread(0.9, pytest.approx(0.7), pytest.approx(1.3), 15)}
    for run in runs:
        (found,) = compare(before, run)
        assert found.change is not RatioChange.FAILED
    (found,) = compare(pooled(runs[:1]), runs[1])
    assert found.change is RatioChange.FAILED


def test_a_baseline_is_written_and_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, good, bad = (tmp_path / name for name in ("baseline.json", "good.json", "bad.json"))
    for path, redis in ((good, 30), (bad, 60)):
        save(path, Results({}, [direct(100), flotilla(20, 10, redis)]))

    assert command.main(argparse.Namespace(baseline=baseline, result=[good], update=True)) == 0
    assert set(load_ratios(baseline)) == set(load_ratios(good))
    for result, code, last in ((good, 0, "BASELINE kept"), (bad, 1, f"BASELINE failed: {NAME}")):
        assert command.main(
            argparse.Namespace(baseline=baseline, result=[result], update=False)
        ) == (code)
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_file_in_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert command.main(argparse.Namespace(baseline=path, result=[path], update=False)) == 2
    assert "can't compare" in capsys.readouterr().err
