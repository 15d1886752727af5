"""When an engine counts as hung."""

from __future__ import annotations

import pytest

from worker.core.engine_steps import (
    SHORT_PROMPT,
    SHORTEST_S,
    TIMES_LONGEST,
    WARM_UP_STEPS,
    EngineSteps,
    stall_limit_s,
)

MOST_S = 120.0


@pytest.mark.parametrize(
    ("most_s", "longest_s", "n_steps", "waiting", "answered", "paused", "limit_s"),
    [
        (MOST_S, 0.02, 1000, 0, 0, False, SHORTEST_S),
        (MOST_S, 0.5, 1000, 0, 0, False, SHORTEST_S),
        (MOST_S, 2.0, 1000, 0, 0, False, 2.0 * TIMES_LONGEST),  # a slow machine
        (MOST_S, 30.0, 1000, 0, 0, False, MOST_S),
        (MOST_S, 0.02, WARM_UP_STEPS - 1, 0, 0, False, MOST_S),  # it compiles
        (MOST_S, 0.02, WARM_UP_STEPS, 0, 0, False, SHORTEST_S),
        (MOST_S, 0.02, 1000, SHORT_PROMPT, 0, False, SHORTEST_S),
        (MOST_S, 0.02, 1000, 100_000, 8_000, False, MOST_S),  # longer than any before
        (MOST_S, 0.02, 1000, 100_000, 60_000, False, SHORTEST_S),
        (MOST_S, 0.02, 1000, 0, 0, True, MOST_S),  # asleep, by an operator
        (0.5, 0.02, 0, 0, 0, False, 0.5),
        (0.5, 9.0, 1000, 0, 0, False, 0.5),
    ],
)
def test_limit(
    most_s: float,
    longest_s: float,
    n_steps: int,
    waiting: int,
    answered: int,
    paused: bool,
    limit_s: float,
) -> None:
    found = stall_limit_s(
        most_s,
        n_steps=n_steps,
        longest_s=longest_s,
        prompt_tokens=waiting,
        answered_tokens=answered,
        paused=paused,
    )
    assert found == limit_s


def looked(steps: EngineSteps, since: float, until: float, *, idle: bool = False) -> None:
    """Look four times a second."""
    for quarter in range(int(since * 4), int(until * 4) + 1):
        steps.look(quarter / 4, idle=idle)


def test_an_engine_that_makes_no_step_is_stalled_for_as_long_as_the_worker_has_looked() -> None:
    steps = EngineSteps(0.0)
    steps.step(5.0)
    looked(steps, 5.0, 17.0)
    assert steps.stalled_s == pytest.approx(12.0)
    steps.step(17.1)
    assert (steps.stalled_s, steps.longest_s) == (0.0, pytest.approx(12.1))


def test_an_idle_engine_is_not_stalled() -> None:
    steps = EngineSteps(0.0)
    looked(steps, 0.0, 500.0, idle=True)
    assert steps.stalled_s == 0.0
    looked(steps, 500.25, 501.0)
    assert steps.stalled_s == pytest.approx(1.0)


def test_a_worker_that_was_stopped_blames_nothing_on_its_engine() -> None:
    steps = EngineSteps(0.0)
    steps.step(1.0)
    looked(steps, 1.0, 2.0)
    steps.look(3600.0, idle=False)
    assert steps.stalled_s <= 2.0
    steps.step(3600.1)
    assert steps.longest_s <= 3.0


def test_a_long_step_is_forgotten() -> None:
    steps, now = EngineSteps(0.0), 0.9
    steps.step(now)
    assert steps.longest_s == pytest.approx(0.9)
    for _ in range(1000):
        now += 0.01
        steps.step(now)
    assert steps.longest_s == pytest.approx(0.01)
