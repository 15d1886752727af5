"""A run against a baseline: noise passes, what is beyond it does not."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from load_tests.bench import compare as command
from load_tests.bench.compare import Change, compare, load_ratios, pooled, ratios
from load_tests.bench.figures import Spread
from load_tests.bench.measurement import Results
from tests.unit.load_tests.test_figures import direct, flotilla, measurement

NAME = "c64 flotilla total_us"


@pytest.mark.parametrize(
    ("then", "now", "change"),
    [
        ((1.0, 0.9, 1.1), (1.1, 1.0, 1.2), Change.SAME),
        ((1.0, 0.9, 1.1), (1.2, 1.19, 1.21), Change.WORSE),  # clear, but not much
        ((1.0, 0.9, 1.1), (1.3, 1.2, 1.4), Change.FAILED),
        ((1.0, 0.9, 1.25), (1.3, 1.2, 1.4), Change.WORSE),  # much, but the quartiles meet
        ((1.0, 0.9, 1.1), (0.8, 0.7, 0.9), Change.BETTER),
        ((1.0, 0.9, 1.1), None, Change.MISSING),
    ],
)
def test_change(
    then: tuple[float, float, float], now: tuple[float, float, float] | None, change: Change
) -> None:
    result = {NAME: Spread(*now, 5)} if now else {}
    (found,) = compare({NAME: Spread(*then, 5)}, result)
    assert found.change is change
    assert NAME in str(found)


def test_only_the_products_ratios_are_held() -> None:
    naive = measurement("naive", 0, {"gateway": 100, "engine": 100})
    results = Results({}, [direct(100), naive, flotilla(20, 10, 30)])
    assert {name: spread.median for name, spread in ratios(results).items()} == {
        "c64 flotilla total_us": pytest.approx(0.6),
        "c64 flotilla front_us": pytest.approx(0.3),
    }


def test_a_baseline_of_several_runs_knows_how_far_runs_differ() -> None:
    runs = [{NAME: Spread(x, x - 0.1, x + 0.1, 5)} for x in (0.8, 1.2, 0.9)]
    then = pooled(runs)
    assert then == {NAME: Spread(0.9, pytest.approx(0.7), pytest.approx(1.3), 15)}
    for run in runs:
        (found,) = compare(then, run)
        assert found.change is not Change.FAILED
    (found,) = compare(pooled(runs[:1]), runs[1])
    assert found.change is Change.FAILED


def test_a_baseline_is_written_and_kept_or_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, good, bad = (tmp_path / name for name in ("baseline.json", "good.json", "bad.json"))
    Results({}, [direct(100), flotilla(20, 10, 30)]).save(good)
    Results({}, [direct(100), flotilla(20, 10, 60)]).save(bad)

    assert command.main(argparse.Namespace(baseline=baseline, result=[good], update=True)) == 0
    assert set(load_ratios(baseline)) == set(load_ratios(good))
    for result, code, last in ((good, 0, "BASELINE kept"), (bad, 1, f"BASELINE failed: {NAME}")):
        assert command.main(
            argparse.Namespace(baseline=baseline, result=[result], update=False)
        ) == (code)
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_file_that_is_none_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert command.main(argparse.Namespace(baseline=path, result=[path], update=False)) == 2
    assert "can't compare" in capsys.readouterr().err
