"""Pauses of worker, Redis and gateway around the time of a lease: no answer may be wrong.

`python -m load_tests faults --schedule` plays as many rounds as wanted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from load_tests.faults.schedules.play import GIVEN, Fuzz, play_drawn, play_given

_ROUNDS = 5
_SEED = "test"


def check(fuzz: Fuzz) -> None:
    print("\n".join(fuzz.failures))
    assert not fuzz.failures, "a client got a wrong answer as complete, or its record differs"
    assert not fuzz.left


@pytest.mark.parametrize("name", GIVEN)
async def test_an_answer_that_was_begun_is_never_begun_again_behind_its_first_tokens(
    name: str, tmp_path: Path
) -> None:
    """A worker that finds that it has not renewed its leases in time drops its jobs."""
    check(await play_given(name, tmp_path / "fleet", rounds=2))


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_pause_makes_an_answer_wrong(tmp_path: Path, workers: int) -> None:
    check(await play_drawn(tmp_path / "fleet", seed=_SEED, rounds=_ROUNDS, workers=workers))
