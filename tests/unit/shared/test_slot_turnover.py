"""When slots become free: compared with a simulation of the slots."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from shared.fleet.recent_work import WINDOW_S, Pace, RecentWork, pace_of
from shared.fleet.registry import HEARTBEAT_S, WorkerInfo
from shared.fleet.slot_turnover import SlotTurnover
from shared.job.states import WorkerState
from tests.unit.worker_info import worker

SLOTS = 24
STEP_S = 0.05
BUSY = worker(state=WorkerState.BUSY, slots=SLOTS, jobs=SLOTS)


def lognormal(rng: random.Random) -> int:
    return max(1, int(rng.lognormvariate(5, 0.8)))


def fixed(_: random.Random) -> int:
    return 200


def classes(rng: random.Random) -> int:
    """Embeddings beside long answers."""
    return 1 if rng.random() < 0.5 else rng.randrange(300, 500)


def announced(work: RecentWork, at_s: float, *totals: float) -> WorkerInfo:
    """`totals`: tokens of ended jobs' prompts, steps, prompt tokens computed, busy seconds."""
    recent = work.update(at_s, *totals)  # type: ignore[call-arg]
    return worker(finished=1, job_seconds=1.0, recent=recent, lengths=work.sparse_lengths())


def pace_with(length: Callable[[random.Random], int]) -> Pace:
    rng, work = random.Random(1), RecentWork()
    for _ in range(2000):
        work.ended(length(rng))
    found = pace_of([announced(work, 1.0, 0, 50_000, 0, 50_000 * STEP_S)])
    assert found is not None
    return found


def simulated(
    length: Callable[[random.Random], int], ages: list[int], position: int, n: int = 200
) -> float:
    """Mean steps until the `position`-th job has ended; each is followed by another at once."""
    found = []
    for seed in range(n):
        rng = random.Random(seed)
        ends = []
        for age in ages:
            whole = length(rng)
            while whole <= age:  # it still runs
                whole = length(rng)
            ends.append(whole - age)
        heapq.heapify(ends)
        for _ in range(position - 1):
            heapq.heapreplace(ends, ends[0] + length(rng))
        found.append(ends[0])
    return mean(found)


@pytest.mark.parametrize("length", [lognormal, fixed, classes])
@pytest.mark.parametrize("position", [1, 12, 24, 60, 240, 1000])
@pytest.mark.parametrize("spread", [0, 8])
def test_the_nth_slot(length: Callable[[random.Random], int], position: int, spread: int) -> None:
    """The jobs began together, or one after the other."""
    ages = [7 + spread * n for n in range(SLOTS)]
    most_first = tuple(sorted(ages, reverse=True))
    turnover = SlotTurnover(pace_with(length), [replace(BUSY, job_steps=most_first)])
    wanted_s = simulated(length, ages, position) * STEP_S
    found_s = turnover.wait_s(position, -HEARTBEAT_S / 2)  # as of the heartbeat
    # Lengths are known by their bucket: these are 1.2 times apart.
    assert found_s == pytest.approx(wanted_s, rel=0.15, abs=10 * STEP_S)


def test_jobs_that_run_for_much_longer_than_all_before_tell_nothing() -> None:
    pace = pace_with(fixed)
    long = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(10_000, 9_000))])
    assert long.wait_s(1, 0.0) is None
    one = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(10_000, 150))])
    wait_s = one.wait_s(1, 0.0)
    assert wait_s is not None
    assert 0.0 < wait_s < 75 * STEP_S


def test_a_sample_of_the_jobs_stands_for_all() -> None:
    pace = pace_with(lognormal)
    whole = SlotTurnover(pace, [replace(BUSY, job_steps=tuple(range(240, 0, -10)))])
    sample = SlotTurnover(pace, [replace(BUSY, job_steps=tuple(range(240, 0, -30)))])
    for position in (1, 10, 100):
        assert sample.wait_s(position, 0.0) == pytest.approx(whole.wait_s(position, 0.0), rel=0.1)


def test_slots_that_were_free_have_been_taken_since() -> None:
    pace = pace_with(lognormal)
    free = SlotTurnover(pace, [replace(BUSY, state=WorkerState.READY, jobs=0)])
    taken = SlotTurnover(pace, [replace(BUSY, job_steps=(0,) * SLOTS)])
    assert (free.slots, free.wait_s(5, 1.0)) == (SLOTS, taken.wait_s(5, 1.0))
    full_cache = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(9, 3))])
    assert full_cache.slots == 2
    nothing = SlotTurnover(pace, [replace(BUSY, jobs=0)])
    assert nothing.wait_s(1, 0.0) is None


def test_the_time_since_the_heartbeat_counts() -> None:
    """Slots become free all the time, so what is true of the next one is so a second later."""
    turnover = SlotTurnover(pace_with(fixed), [replace(BUSY, jobs=1, slots=1, job_steps=(50,))])
    first_s = turnover.wait_s(1, 0.0)
    assert first_s is not None
    assert turnover.wait_s(1, 2.0) == pytest.approx(first_s - 2.0, abs=0.2)


def test_prompts_add_their_time() -> None:
    """Steps of 20 ms, and 0.1 ms for each token of the prompts, shared by two workers."""
    work, steps, prompts, busy_s = RecentWork(), 0, 0, 0.0
    for turn, (more_steps, more_prompts) in enumerate([(90, 5000), (50, 20_000), (80, 8000)], 1):
        steps, prompts = steps + more_steps, prompts + more_prompts
        busy_s += more_steps * 0.02 + more_prompts * 0.0001
        for _ in range(40):
            work.ended(100)
        info = announced(work, 2.0 * turn, 40_000 * turn, steps, prompts, busy_s)
    pace = pace_of([info, replace(info, id="w-2")])
    assert pace is not None
    assert (pace.step_s, pace.token_s) == (
        pytest.approx(0.02, rel=0.001),
        pytest.approx(0.0001, rel=0.001),
    )
    assert pace.prompt_tokens == pytest.approx(1000, rel=0.001)
    two = [replace(BUSY, job_steps=(0,) * SLOTS), replace(BUSY, id="w-2", job_steps=(0,) * SLOTS)]
    none = SlotTurnover(replace(pace, token_s=0.0), two).wait_s(50, 0.0)
    assert none is not None
    with_prompts = none + 50 * pace.prompt_tokens * pace.token_s / 2
    assert SlotTurnover(pace, two).wait_s(50, 0.0) == pytest.approx(with_prompts)


def test_prompts_in_proportion_to_the_steps_are_a_part_of_them() -> None:
    """As of embeddings, where each step has as many prompts: their own cost can't be known."""
    work = RecentWork()
    for turn in range(1, 5):
        for _ in range(2000):
            work.ended(1)
        info = announced(work, 2.0 * turn, turn * 7000, turn * 100, turn * 7000, turn * 3.0)
    pace = pace_of([info])
    assert pace is not None
    assert (pace.step_s, pace.token_s, pace.job_steps) == (
        pytest.approx(0.03, rel=0.001),
        0.0,
        1.0,
    )


def test_where_only_the_time_of_a_job_is_known() -> None:
    """Workers of an older release announce no more; and where no job has ended yet."""
    assert pace_of([worker()]) is None
    pace = pace_of([worker(finished=10, job_seconds=20.0)])
    assert pace is not None
    assert pace.job_s == pytest.approx(2.0)
    old, steps = worker(state=WorkerState.BUSY, jobs=8), (900, 800, 700, 600, 500, 400, 300, 200)
    for each in (old, replace(old, job_steps=steps)):
        turnover = SlotTurnover(pace, [each])
        assert turnover.wait_s(81, 0.0) == pytest.approx(80.5 / 8 * 2.0, rel=0.05)
    fast = SlotTurnover(Pace.of_job(0.05), [replace(BUSY, slots=160, jobs=160)])
    assert fast.wait_s(1, 0.0) == pytest.approx(0.0, abs=0.001)


def test_an_older_worker_beside_newer_ones() -> None:
    pace = pace_with(fixed)
    long = replace(BUSY, jobs=2, job_steps=(10_000, 9_000))
    assert SlotTurnover(pace, [long, replace(BUSY, id="w-2", jobs=8)]).wait_s(1, 0.0) is not None


def test_the_pace_follows_what_was_done_lately() -> None:
    work = RecentWork()
    for _ in range(100):
        work.ended(10)
    first = announced(work, 0.0, 0, 1000, 0, 20.0)
    assert announced(work, 1000.0, 0, 1000, 0, 20.0).lengths == first.lengths, "no job has ended"
    for _ in range(100):
        work.ended(1000)
    later = pace_of([announced(work, 1000.0 + 10 * WINDOW_S, 0, 11_000, 0, 120.0)])
    assert later is not None
    assert later.job_steps == pytest.approx(1000, rel=0.1)
    assert later.whole_step_s == pytest.approx(0.01, rel=0.01)


def test_the_cost_of_a_turnover_is_bounded() -> None:
    """Long jobs of all ages beside many short ones: their ages are few classes."""
    rng, work = random.Random(1), RecentWork()
    for n in range(10_000):
        work.ended(2000 if n % 100 == 0 else 1)
    pace = pace_of([announced(work, 1.0, 0, 50_000, 0, 2500.0)])
    assert pace is not None
    ages = [rng.randrange(10_000) for _ in range(1000)]
    turnover = SlotTurnover(pace, [replace(BUSY, slots=1000, jobs=1000, job_steps=tuple(ages))])
    assert len({turnover._rounded(age) for age in range(100_000)}) < 120
