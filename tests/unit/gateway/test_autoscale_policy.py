"""How many workers, and why: by table, over time, and invariants for any observation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.ops.autoscaler.policy import decide
from shared.fleet.autoscale_types import Decision, Limits, Observation, PolicyState
from shared.fleet.pool_settings import parse_autoscale

NOW_S = 1.76e9
LIMITS = Limits(min=0, max=20, target_wait_s=5, utilization=0.8, down_after_s=120, idle_s=300)
UNKNOWN = Observation(
    at_s=NOW_S,
    waiting=0,
    waiting_tokens=None,
    oldest_s=0,
    running=0,
    arrivals_per_s=0,
    job_s=None,
    job_tokens=None,
    slots=None,
    ready=0,
    starting=0,
    draining=0,
    start_s=None,
)
KNOWN = replace(UNKNOWN, job_s=10.0, job_tokens=500.0, slots=8, start_s=30.0)
FULL = replace(KNOWN, ready=4, running=32)
"""All slots are taken, no job waits."""


def first(now: Observation, **limits: float) -> Decision:
    """The first decision, with as many workers wanted before as are there."""
    return decide(now, replace(LIMITS, **limits), None)


class Run:
    """A series of decisions; wanted workers are there at once unless an observation has others."""

    def __init__(self, now: Observation, **limits: float) -> None:
        self.limits = replace(LIMITS, **limits)
        self.now = now
        self.last = decide(now, self.limits, None)

    def observe(self, after_s: float, **changes: object) -> Decision:
        self.now = replace(self.now, at_s=self.now.at_s + after_s, **changes)
        self.last = decide(self.now, self.limits, self.last.state)
        return self.last

    def observe_for(self, seconds: float, **changes: object) -> Decision:
        """Observe every 2 s for `seconds`; returns the last decision."""
        for _ in range(int(seconds / 2)):
            self.observe(2, **changes)
        return self.last


# --- what the load needs ---


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        # no observation of the load yet
        (UNKNOWN, 0),
        (replace(UNKNOWN, waiting=1), 1),
        (replace(UNKNOWN, waiting=33), 2),
        (replace(UNKNOWN, waiting=5_000_000), 20),
        (replace(UNKNOWN, waiting=9, slots=8), 2),
        (replace(UNKNOWN, waiting=9, slots=8, ready=1, running=8, oldest_s=1), 3),
        # steady load: 40 slots busy of 8 a worker, no more than 80% of them
        (replace(FULL, ready=6, running=40, arrivals_per_s=4.8), 7),
        # enough for the running jobs, though no new ones arrive
        (replace(FULL, arrivals_per_s=0), 4),
        # a backlog: clear 5 s after the new ones are there, each of which takes 12 jobs until then
        (replace(KNOWN, waiting=120), 10),
        (replace(FULL, waiting=160), 8),
        (replace(FULL, waiting=2_000_000, start_s=600.0), 20),
        # jobs that will cost four times as much
        (replace(FULL, waiting=40, waiting_tokens=80_000.0), 6),
        # the running jobs end before a new worker has loaded
        (replace(FULL, waiting=96, start_s=120.0), 4),
        # a slot is free for each
        (replace(FULL, running=20, waiting=12), 4),
    ],
)
def test_the_first_decision(now: Observation, wanted: int) -> None:
    assert first(now).wanted == wanted


def test_millions_of_jobs_take_all_workers_at_once() -> None:
    assert first(replace(UNKNOWN, waiting=5_000_000), max=10_000).wanted == 10_000
    assert first(replace(KNOWN, waiting=5_000_000), max=10_000).wanted == 10_000


def test_a_backlog_is_not_asked_for_twice_while_workers_load() -> None:
    run = Run(replace(KNOWN, waiting=120, start_s=120.0))
    wanted = run.last.wanted
    assert wanted == 10
    run.observe_for(118, starting=wanted)
    assert run.last.wanted == wanted


def test_workers_that_have_just_loaded_are_not_taken_away_again() -> None:
    """They loaded for as long as fewer workers must have been enough."""
    run = Run(replace(KNOWN, waiting=120, start_s=120.0))
    wanted = run.last.wanted
    run.observe_for(120, starting=wanted)
    assert run.observe(2, starting=0, ready=wanted, running=8, waiting=112).wanted == wanted


def test_a_worker_that_is_late_is_expected_soon_and_not_asked_for_again() -> None:
    run = Run(replace(KNOWN, waiting=8, start_s=30.0))
    assert run.observe_for(200, starting=1).wanted == 1
    assert run.last.wait_s == pytest.approx(3, abs=2)


# --- a queue that does not move ---


def test_jobs_behind_long_ones_get_slots_although_the_figures_are_low() -> None:
    stuck = replace(KNOWN, ready=1, running=8, waiting=1, job_s=2.0, arrivals_per_s=0.01)
    run = Run(stuck)
    assert run.last.wanted == 1
    for _ in range(4):
        run.observe(2, oldest_s=run.now.oldest_s + 2)
    assert run.last.wanted == 2
    # the requested worker is enough
    for _ in range(10):
        run.observe(2, oldest_s=run.now.oldest_s + 2, starting=1)
    assert run.last.wanted == 2


@pytest.mark.parametrize(
    ("shorter", "older_s"),
    [(6, 0.0), (0, 0.0), (6, 2.0)],  # the last: all of them came at the same moment
)
def test_a_queue_that_moves_is_not_stuck_however_old_it_is(shorter: int, older_s: float) -> None:
    run = Run(replace(FULL, waiting=1000, oldest_s=500.0, start_s=600.0), max=100)
    for _ in range(100):
        run.observe(2, waiting=run.now.waiting - shorter, oldest_s=run.now.oldest_s + older_s)
    assert run.last.wanted == 4


def test_a_worker_that_memory_bounds_counts_with_the_jobs_that_it_runs() -> None:
    """256 slots, but only 40 jobs fit: those in the queue see no free slot."""
    now = replace(KNOWN, slots=256, ready=1, running=40, waiting=300, arrivals_per_s=4.0)
    run = Run(now)
    assert run.last.wanted == 1
    run.observe_for(12, oldest_s=9.0, waiting=301)
    assert run.last.wanted > 4


# --- up at once, down slowly ---


def test_down_only_when_fewer_have_been_enough_for_a_while() -> None:
    run = Run(replace(FULL, arrivals_per_s=2.5))
    assert run.last.wanted == 4
    assert run.observe_for(84, running=5, arrivals_per_s=0.5).wanted == 4
    assert run.observe_for(34).wanted == 4
    assert run.observe(2).wanted == 1


def test_the_largest_need_of_the_window_counts() -> None:
    run = Run(replace(FULL, ready=10, running=64, arrivals_per_s=6.4))
    assert run.last.wanted == 10
    run.observe_for(60, running=40, arrivals_per_s=4.0)  # 7 would do
    run.observe_for(58, running=10, arrivals_per_s=1.0)  # 2 would do
    assert run.last.wanted == 10
    assert run.observe_for(2).wanted == 7
    assert run.observe_for(52, ready=7).wanted == 7
    assert run.observe_for(12).wanted == 2


def test_a_load_on_a_boundary_does_not_flap() -> None:
    """6.4 slots are one worker's share."""
    run = Run(replace(KNOWN, ready=1, running=6, arrivals_per_s=0.64))
    wanted = {run.observe(2, arrivals_per_s=0.64 + 0.05 * (-1) ** i).wanted for i in range(500)}
    assert wanted == {1}
    run.observe(2, arrivals_per_s=0.75)
    wanted = {
        run.observe(2, ready=2, arrivals_per_s=0.68 + 0.03 * (-1) ** i).wanted for i in range(500)
    }
    assert wanted == {2}


def test_the_first_number_of_workers_counts_as_needed_until_then() -> None:
    run = Run(replace(KNOWN, ready=9))
    assert run.last.wanted == 9
    assert run.observe_for(118).wanted == 9
    assert run.observe_for(2).wanted == 1  # the last one waits longer


def test_loading_workers_are_stopped_only_by_the_limit() -> None:
    run = Run(replace(KNOWN, waiting=120))
    assert run.last.wanted == 10
    run.observe(2, starting=10, waiting=0)  # cancelled
    assert run.observe_for(300).wanted == 10
    run.limits = replace(run.limits, max=4)
    assert run.observe(2).wanted == 4


def test_to_zero_when_idle_and_back_at_the_first_job() -> None:
    run = Run(replace(KNOWN, ready=1, running=1, arrivals_per_s=0.01))
    assert run.observe_for(210, running=0).wanted == 1
    assert run.observe_for(88).wanted == 1
    assert run.observe(2).wanted == 0
    assert run.observe_for(600, ready=0, arrivals_per_s=0).wanted == 0
    assert run.observe(2, waiting=1).wanted == 1
    assert run.last.wait_s == pytest.approx(30, abs=2)


def test_work_restarts_the_idle_time() -> None:
    run = Run(replace(KNOWN, ready=1))
    run.observe_for(290)
    run.observe(2, running=1)
    run.observe(2, running=0)
    assert run.observe_for(290).wanted == 1


def test_limits_that_change_count_at_once() -> None:
    run = Run(FULL)
    run.limits = replace(run.limits, max=2)
    assert run.observe(2).wanted == 2
    run.limits = replace(run.limits, min=6, max=20)
    assert run.observe(2).wanted == 6


def test_jobs_on_draining_workers_keep_no_others() -> None:
    run = Run(replace(KNOWN, ready=1, draining=3, running=32))
    assert run.observe_for(130).wanted == 1


# --- clocks ---


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    run = Run(replace(FULL, arrivals_per_s=2.5))
    run.observe_for(60, running=5, arrivals_per_s=0.5)
    assert run.observe(-86_400).wanted == 4
    assert run.observe_for(62).wanted == 1


def test_an_outage_of_the_autoscaler_is_not_calm() -> None:
    run = Run(replace(FULL, arrivals_per_s=2.5))
    run.observe(2, running=5, arrivals_per_s=0.5)
    assert run.observe(3600).wanted == 4
    idle = Run(replace(KNOWN, ready=1))
    assert idle.observe(3600).wanted == 1


# --- the wait that clients get ---


@pytest.mark.parametrize(
    ("now", "wait_s"),
    [
        (UNKNOWN, None),
        (replace(KNOWN), 30),  # it would be what a worker is started for
        (replace(KNOWN, ready=1, running=7), 0),
        (replace(KNOWN, ready=1, running=8), 1.25),
        (replace(UNKNOWN, ready=1, running=7, slots=8), 0),
        (replace(UNKNOWN, ready=1, running=8, slots=8), None),
        (replace(UNKNOWN, waiting=5), None),
        (replace(KNOWN, waiting=120), 30 + (121 - 80) / 8),
        (replace(KNOWN, waiting=120, start_s=None), None),
        (replace(KNOWN, starting=1), 30),
    ],
)
def test_the_wait_of_a_job_that_comes_now(now: Observation, wait_s: float | None) -> None:
    assert first(now).wait_s == (None if wait_s is None else pytest.approx(wait_s))


# --- invariants for any observation ---


def _seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False)


def _maybe(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


OBSERVATIONS = st.builds(
    Observation,
    at_s=st.floats(1.7e9, 1.7e9 + 1e5),
    waiting=st.just(0) | st.integers(0, 50) | st.integers(0, 10**7),
    waiting_tokens=_maybe(_seconds(1e9)),
    oldest_s=_seconds(1e5),
    running=st.just(0) | st.integers(0, 10_000),
    arrivals_per_s=_seconds(1e4),
    job_s=_maybe(_seconds(1e4)),
    job_tokens=_maybe(_seconds(1e5)),
    slots=st.none() | st.integers(0, 1024),
    ready=st.integers(0, 30),
    starting=st.just(0) | st.integers(0, 30),
    draining=st.integers(0, 30),
    start_s=_maybe(_seconds(1e4)),
)
LIMITS_OF_ALL_KINDS = st.builds(
    lambda least, more, **others: Limits(min=least, max=max(1, least + more), **others),
    least=st.integers(0, 20),
    more=st.integers(0, 10_000),
    target_wait_s=_seconds(1e3),
    utilization=st.floats(0.01, 1),
    down_after_s=_seconds(1e3),
    idle_s=_seconds(1e3),
)
HISTORIES = st.lists(OBSERVATIONS, min_size=1, max_size=6)


def each(
    history: list[Observation], limits: Limits, check: Callable[[Observation, Decision], None]
) -> None:
    state = None
    for now in history:
        decision = decide(now, limits, state)
        check(now, decision)
        state = decision.state


@settings(max_examples=300, deadline=None)
@given(HISTORIES, LIMITS_OF_ALL_KINDS)
def test_decisions_stay_within_the_limits_and_have_a_reason(
    history: list[Observation], limits: Limits
) -> None:
    def check(now: Observation, decision: Decision) -> None:
        assert limits.min <= decision.wanted <= limits.max
        assert decision.wanted >= min(1 if now.waiting else 0, limits.max)
        if now.starting:
            assert decision.wanted >= min(limits.max, now.ready + now.starting)
        assert decision.reason
        assert not {"nan", "inf"} & set(decision.reason.replace(";", " ").split())
        assert decision.wait_s is None or (math.isfinite(decision.wait_s) and decision.wait_s >= 0)

    each(history, limits, check)


@settings(max_examples=200, deadline=None)
@given(HISTORIES, LIMITS_OF_ALL_KINDS)
def test_the_policys_state_is_small_ordered_and_can_be_stored(
    history: list[Observation], limits: Limits
) -> None:
    stored = TypeAdapter(PolicyState)

    def check(now: Observation, decision: Decision) -> None:
        state = decision.state
        assert stored.validate_json(stored.dump_json(state)) == state
        times, needs = zip(*state.needs, strict=True)
        assert list(times) == sorted(times)
        assert max(times) == now.at_s
        assert list(needs) == sorted(set(needs), reverse=True)
        expected = max(now.starting, decision.wanted - now.ready)
        assert sum(workers for _, workers in state.requested) == max(0, expected)

    each(history, limits, check)


@settings(max_examples=300, deadline=None)
@given(OBSERVATIONS, LIMITS_OF_ALL_KINDS, st.integers(1, 10**6))
def test_more_waiting_jobs_never_mean_fewer_workers(
    now: Observation, limits: Limits, more: int
) -> None:
    now = replace(now, waiting_tokens=None)
    longer = replace(now, waiting=now.waiting + more)
    assert decide(longer, limits, None).wanted >= decide(now, limits, None).wanted


@settings(max_examples=100, deadline=None)
@given(HISTORIES, LIMITS_OF_ALL_KINDS)
def test_idle_fleets_reach_the_minimum(history: list[Observation], limits: Limits) -> None:
    """After any history: without work, and with the wanted workers there, `min` is wanted."""
    state = None
    for now in history:
        state = decide(now, limits, state).state
    quiet = replace(KNOWN, at_s=history[-1].at_s)
    observe_for = int(max(limits.down_after_s, limits.idle_s) / 60) + 2
    for _ in range(observe_for):
        assert state is not None
        quiet = replace(quiet, at_s=quiet.at_s + 60, ready=state.wanted)
        state = decide(quiet, limits, state).state
    assert state is not None
    assert state.wanted == limits.min


# --- the settings' text ---


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", {}),
        ("demo=0:3", {"demo": (0, 3)}),
        (
            " Qwen/Qwen3-0.6B = 1:1 , demo=0:10000,",
            {"Qwen/Qwen3-0.6B": (1, 1), "demo": (0, 10_000)},
        ),
        ("odd:name=x=2:4", {"odd:name=x": (2, 4)}),
    ],
)
def test_ranges_of_models(text: str, ranges: dict[str, tuple[int, int]]) -> None:
    assert parse_autoscale(text) == ranges


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("demo", "'demo' is not MODEL=MIN:MAX"),
        ("0:3", "'0:3' is not MODEL=MIN:MAX"),
        ("=0:3", "'=0:3' is not MODEL=MIN:MAX"),
        ("demo=3", "'3' is not MIN:MAX"),
        ("demo=3:1", "0 <= MIN <= MAX"),
        ("demo=0:0", "1 <= MAX <= 10000"),
        ("demo=0:10001", "1 <= MAX <= 10000"),
        ("demo=-1:3", "'-1:3' is not MIN:MAX"),
        ("demo=0:x", "'0:x' is not MIN:MAX"),
        ("demo=0:1:2", "'0:1:2' is not MIN:MAX"),
        ("demo=0:٣", "is not MIN:MAX"),
        ("a=0:1,a=0:2", "'a' is there twice"),
    ],
)
def test_a_wrong_range_says_what_is_accepted(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"MIN:MAX|twice") as error:
        parse_autoscale(text)
    assert problem in str(error.value)
