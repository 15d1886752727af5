"""Whose failure ends a run of the load tests, and whose is told only."""

from __future__ import annotations

from pathlib import Path

import pytest

from load_tests.bench.rounds import WrongAnswer, some_may_fail
from load_tests.harness.processes import Processes
from load_tests.systems.engine import EngineTiming
from load_tests.systems.registry import SYSTEMS

JUDGED = ("direct", "flotilla", "flotilla-tcp", "flotilla-2gw", "flotilla-2redis")
COMPARED = ("naive", "nginx", "rust-router", "production-stack", "litellm")


@pytest.mark.parametrize("name", COMPARED)
def test_what_the_product_is_compared_with_may_fail(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    with some_may_fail(SYSTEMS[name](Processes(tmp_path), EngineTiming(10.0, 250.0)), said.append):
        raise WrongAnswer("64x not answered\nin time")
    assert said == [f"{name} is left out here: 64x not answered in time"]


@pytest.mark.parametrize("name", JUDGED)
def test_a_wrong_answer_of_the_product_or_its_measure_ends_the_run(
    name: str, tmp_path: Path
) -> None:
    said: list[str] = []
    with (
        pytest.raises(WrongAnswer),
        some_may_fail(SYSTEMS[name](Processes(tmp_path), EngineTiming(10.0, 250.0)), said.append),
    ):
        raise WrongAnswer("64x not answered in time")
    assert said == []
