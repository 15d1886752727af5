"""Pauses of worker, Redis and gateway of about one lease never make an answer wrong.

`--seeds 500` plays so many rounds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from load_tests.faults.schedules.play import FIXED, ScheduleResults, play_drawn, play_fixed

_ROUNDS = 3
_SEED = "test"


def check(results: ScheduleResults) -> None:
    print("\n".join(results.failures))
    assert not results.failures, "a client got a wrong answer as complete, or its record differs"
    assert not results.leftovers


@pytest.mark.parametrize("name", FIXED)
async def test_a_second_answer_is_never_appended_to_the_first_part_of_another(
    name: str, tmp_path: Path
) -> None:
    """A worker that did not renew its leases in time aborts its jobs."""
    check(await play_fixed(name, tmp_path / "fleet"))


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_pause_makes_an_answer_wrong(
    tmp_path: Path, workers: int, pytestconfig: pytest.Config
) -> None:
    rounds = pytestconfig.getoption("seeds") or _ROUNDS
    check(await play_drawn(tmp_path / "fleet", seed=_SEED, rounds=rounds, workers=workers))
