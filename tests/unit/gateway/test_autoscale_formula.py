"""How many workers: what is seen of a pool, and the formula by table and over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ops.autoscaler.formula import Decided, decide, observe
from shared.fleet.pool_settings import parse_autoscale
from shared.fleet.registry import Heartbeat, WorkerInfo
from shared.fleet.scale_decisions import Limits, Observation
from shared.job.states import WorkerState
from shared.store.views import LaneDepth
from tests.unit.worker_info import NOW_S, worker

LIMITS = Limits(min=0, max=20, down_after_s=120, idle_s=300)
UNKNOWN = Observation(
    at_s=NOW_S,
    waiting=0,
    oldest_s=0,
    running=0,
    slots=None,
    ready=0,
    starting=0,
    draining=0,
    start_s=None,
    job_s=None,
)
EMPTY = replace(UNKNOWN, slots=8)
FULL = replace(EMPTY, ready=4, running=32)


class Run:
    """A series of decisions."""

    def __init__(self, now: Observation, **limits: float) -> None:
        self.limits = replace(LIMITS, **limits)
        self.last = decide(now, self.limits, None)

    def after(self, seconds: float, **changes: Any) -> int:
        """The workers wanted at the end of so many seconds with ticks of 2 s."""
        for _ in range(int(seconds / 2)):
            self.tick(2, **changes)
        return self.last.wanted

    def tick(self, after_s: float, **changes: Any) -> Decided:
        now = replace(self.last.seen, at_s=self.last.seen.at_s + after_s, **changes)
        self.last = decide(now, self.limits, self.last)
        return self.last


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (UNKNOWN, 0),
        (replace(UNKNOWN, waiting=1), 1),
        (replace(UNKNOWN, waiting=33), 2),  # 32 slots are assumed
        (replace(EMPTY, waiting=9), 2),
        (replace(FULL, waiting=1), 5),
        (replace(FULL, waiting=5_000_000), 20),
        # Jobs wait although slots are free: a worker runs no more than 3 at once.
        (replace(FULL, running=12, waiting=9, oldest_s=3), 7),
        (replace(FULL, running=12, waiting=9, oldest_s=1), 4),  # they are about to be taken
        (replace(FULL, running=3, waiting=9, oldest_s=3), 4),
        # What loads is not stopped, and what is there was needed.
        (replace(EMPTY, starting=3), 3),
        (replace(EMPTY, ready=1, starting=2, running=1), 3),
        (replace(EMPTY, ready=6), 6),
    ],
)
def test_the_first_decision(now: Observation, wanted: int) -> None:
    assert decide(now, LIMITS, None).wanted == wanted


def test_up_at_once_and_down_to_the_most_of_the_last_time() -> None:
    run = Run(FULL)
    assert run.tick(2, waiting=9).wanted == 6
    assert run.tick(2, waiting=0, ready=6, running=20).wanted == 6
    assert run.after(60, running=36) == 6
    assert run.after(56, running=10) == 6
    assert run.after(4) == 5  # 36 jobs ran 60 s ago
    assert run.after(60) == 2


def test_the_last_worker_goes_after_a_time_without_work() -> None:
    run = Run(replace(EMPTY, ready=1, running=1))
    assert run.after(298, running=0) == 1
    assert run.after(4) == 0
    busy = Run(replace(EMPTY, ready=1, running=1))
    busy.after(250, running=0)
    busy.tick(2, running=1)
    assert busy.after(298, running=0) == 1


def test_a_worker_that_loads_is_kept_and_asked_for_once() -> None:
    run = Run(replace(EMPTY, waiting=20))
    assert run.after(600, starting=3) == 3
    assert run.after(600, waiting=0) == 3
    assert run.after(4, starting=0, ready=3) == 0


def test_one_that_has_just_loaded_has_time_to_take_jobs() -> None:
    run = Run(replace(EMPTY, ready=1, running=8, waiting=8, starting=1, oldest_s=30))
    assert run.tick(2, ready=2, starting=0).wanted == 2
    assert run.tick(2).wanted == 4  # it takes none: memory is full


@pytest.mark.parametrize("gap_s", [-3600, 3600])
def test_a_gap_or_a_clock_that_jumps_is_no_time_without_work(gap_s: float) -> None:
    run = Run(replace(EMPTY, ready=3, running=20))
    assert run.tick(gap_s, running=0).wanted == 3
    assert run.after(118) == 3
    assert run.after(4) == 1
    assert run.after(180) == 0


def test_the_limits_hold_and_are_named() -> None:
    run = Run(FULL, min=2, max=3)
    assert (run.last.wanted, "maximum" in run.last.why) == (3, True)
    run.after(400, running=0)
    assert (run.last.wanted, "minimum" in run.last.why) == (2, True)


_COUNT = st.integers(0, 10_000)


@given(
    st.builds(
        Observation,
        at_s=st.floats(0, 1e10),
        waiting=_COUNT,
        oldest_s=st.floats(0, 1e6),
        running=_COUNT,
        slots=st.none() | st.integers(1, 512),
        ready=_COUNT,
        starting=_COUNT,
        draining=_COUNT,
        start_s=st.none(),
        job_s=st.none(),
    ),
    st.lists(st.tuples(st.floats(0, 100), _COUNT, _COUNT), max_size=5),
)
def test_whatever_is_seen(now: Observation, later: list[tuple[float, int, int]]) -> None:
    run = Run(now, max=5000)
    for after_s, waiting, running in later:
        run.tick(after_s, waiting=waiting, running=running)
        seen, wanted = run.last.seen, run.last.wanted
        assert 0 <= wanted <= 5000
        assert wanted >= min(seen.ready + seen.starting, 5000) or not seen.starting
        assert wanted or not waiting + running


def see(*workers: WorkerInfo, age_s: float = 1.0, before: Observation | None = None) -> Observation:
    lanes = [LaneDepth("pool", "default", 7, 3.5, 2), LaneDepth("pool/a", "flex", 1, 9.0, 1)]
    return observe(NOW_S, lanes, [Heartbeat(each, age_s) for each in workers], before)


def test_all_lanes_are_seen_and_the_states_of_workers() -> None:
    states = ("ready", "busy", "paused", "starting", "draining")
    workers = [worker(f"w-{state}", state=WorkerState(state)) for state in states]
    seen = see(*workers, worker("w-9", failure="no memory"))
    assert (seen.waiting, seen.oldest_s, seen.running) == (8, 9.0, 3)
    assert (seen.ready, seen.starting, seen.draining) == (3, 1, 1)
    assert see(worker(state=WorkerState.STARTING), age_s=601).starting == 0


def test_what_workers_have_announced_is_remembered() -> None:
    seen = see(worker(start_s=10.0, finished=2, job_s=3.0), worker("w-2", start_s=20.0))
    assert (seen.slots, seen.start_s, seen.job_s) == (8, 15.0, 3.0)
    loads = see(worker("w-3", state=WorkerState.STARTING, slots=0), before=seen)
    assert (loads.slots, loads.start_s, loads.job_s) == (8, 15.0, 3.0)
    assert (see().slots, see().start_s, see().job_s) == (None, None, None)


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
