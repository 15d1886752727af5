"""Which systems' failures end a run, and which are only printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from load_tests.bench.rounds import tolerate_failure
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.processes import Processes
from load_tests.systems.engine import EngineTiming
from load_tests.systems.registry import SYSTEMS

REQUIRED = ("direct", "flotilla", "flotilla-tcp", "flotilla-2gw")
OPTIONAL = ("nginx", "rust-router")


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_failure_of_an_optional_system_is_printed(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with tolerate_failure(
        SYSTEMS[name](Processes(tmp_path), EngineTiming(10.0, 250.0)), lines.append
    ):
        raise WrongAnswerError("64x not answered\nin time")
    assert lines == [f"{name} is left out here: 64x not answered in time"]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_failure_of_flotilla_or_direct_ends_the_run(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with (
        pytest.raises(WrongAnswerError),
        tolerate_failure(
            SYSTEMS[name](Processes(tmp_path), EngineTiming(10.0, 250.0)), lines.append
        ),
    ):
        raise WrongAnswerError("64x not answered in time")
    assert lines == []
