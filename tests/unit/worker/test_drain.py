"""How many jobs a draining worker hands over, and which ones first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.core.drain import cheapest, how_many


@pytest.mark.parametrize(
    ("free", "waiting", "jobs", "sequences", "expected"),
    [
        (10, 0, 4, 4, 4),  # room for all
        (3, 0, 4, 4, 3),
        (3, 2, 4, 4, 1),  # waiting jobs take slots first
        (3, 5, 4, 4, 0),
        (0, 0, 4, 4, 0),
        (8, 0, 4, 16, 2),  # four sequences each
        (3, 0, 4, 16, 0),
        (3, 0, 4, 1, 3),  # some have not reached the engine: one slot each at least
        (9, 0, 0, 0, 0),
    ],
)
def test_no_more_jobs_move_than_other_workers_have_room_for(
    free: int, waiting: int, jobs: int, sequences: int, expected: int
) -> None:
    assert how_many(free, waiting, jobs, sequences) == expected


def test_jobs_with_the_least_work_in_them_move_first() -> None:
    def run(
        reached_engine: bool, tokens: int, final_state: str = "", *, movable: bool = True
    ) -> Any:
        buffer = SimpleNamespace(
            reached_engine=reached_engine, completion_tokens=tokens, movable=movable
        )
        return SimpleNamespace(buffer=buffer, final_state=final_state)

    long, short, waits = run(True, 90), run(True, 3), run(False, 0)
    ending, kept = run(True, 1, "completed"), run(True, 1, movable=False)
    runs = [long, ending, kept, short, waits]
    assert cheapest(runs, 9) == [waits, short, long]
    assert cheapest(runs, 2) == [waits, short]
    assert cheapest(runs, 0) == []
