"""When slots become free: compared with a simulation of the slots."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from shared.fleet.recent_work import LENGTHS, Pace, RecentWork, length_bucket
from shared.fleet.registry import HEARTBEAT_S
from shared.fleet.slot_turnover import SlotTurnover
from shared.job.states import WorkerState
from tests.unit.gateway.test_observation import worker

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


def pace_of(length: Callable[[random.Random], int]) -> Pace:
    rng, lengths = random.Random(1), [0] * len(LENGTHS)
    for _ in range(2000):
        lengths[length_bucket(length(rng))] += 1
    work = RecentWork()
    work.update([worker()], 0.0)
    done = worker(finished=2000, steps=50_000, busy_s=50_000 * STEP_S, lengths=tuple(lengths))
    work.update([done], 2.0)
    found = work.pace("pool")
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
    turnover = SlotTurnover(pace_of(length), [replace(BUSY, job_steps=most_first)])
    wanted_s = simulated(length, ages, position) * STEP_S
    found_s = turnover.wait_s(position, -HEARTBEAT_S / 2)  # as of the heartbeat
    # Lengths are known by their bucket: these are 1.2 times apart.
    assert found_s == pytest.approx(wanted_s, rel=0.15, abs=10 * STEP_S)


def test_jobs_that_run_for_much_longer_than_all_before_tell_nothing() -> None:
    pace = pace_of(fixed)
    long = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(10_000, 9_000))])
    assert long.wait_s(1, 0.0) is None
    one = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(10_000, 150))])
    wait_s = one.wait_s(1, 0.0)
    assert wait_s is not None
    assert 0.0 < wait_s < 75 * STEP_S


def test_a_sample_of_the_jobs_stands_for_all() -> None:
    pace = pace_of(lognormal)
    whole = SlotTurnover(pace, [replace(BUSY, job_steps=tuple(range(240, 0, -10)))])
    sample = SlotTurnover(pace, [replace(BUSY, job_steps=tuple(range(240, 0, -30)))])
    for position in (1, 10, 100):
        assert sample.wait_s(position, 0.0) == pytest.approx(whole.wait_s(position, 0.0), rel=0.1)


def test_slots_that_were_free_have_been_taken_since() -> None:
    pace = pace_of(lognormal)
    free = SlotTurnover(pace, [replace(BUSY, state=WorkerState.READY, jobs=0)])
    taken = SlotTurnover(pace, [replace(BUSY, job_steps=(0,) * SLOTS)])
    assert (free.slots, free.wait_s(5, 1.0)) == (SLOTS, taken.wait_s(5, 1.0))
    full_cache = SlotTurnover(pace, [replace(BUSY, jobs=2, job_steps=(9, 3))])
    assert full_cache.slots == 2
    nothing = SlotTurnover(pace, [replace(BUSY, jobs=0)])
    assert nothing.wait_s(1, 0.0) is None


def test_the_time_since_the_heartbeat_counts() -> None:
    """Slots become free all the time, so what is true of the next one is so a second later."""
    turnover = SlotTurnover(pace_of(fixed), [replace(BUSY, jobs=1, slots=1, job_steps=(50,))])
    first_s = turnover.wait_s(1, 0.0)
    assert first_s is not None
    assert turnover.wait_s(1, 2.0) == pytest.approx(first_s - 2.0, abs=0.2)


def test_prompts_add_their_time() -> None:
    """Steps of 20 ms, and 0.1 ms for each token of the prompts, shared by two workers."""
    work, totals = RecentWork(), [0, 0, 0.0]
    lengths = [0] * len(LENGTHS)
    lengths[length_bucket(100)] = 40
    for turn, (steps, prompts) in enumerate([(0, 0), (90, 5000), (50, 20_000), (80, 8000)]):
        totals[0] += steps
        totals[1] += prompts
        totals[2] += steps * 0.02 + prompts * 0.0001
        row = worker(
            finished=40 * turn,
            prompt_tokens=40_000 * turn,
            steps=totals[0],
            prefilled_tokens=totals[1],
            busy_s=totals[2],
            lengths=tuple(n * turn for n in lengths),
        )
        work.update([row], 2.0 * turn)
    pace = work.pace("pool")
    assert pace is not None
    assert (pace.step_s, pace.token_s) == (pytest.approx(0.02), pytest.approx(0.0001))
    assert pace.prompt_tokens == pytest.approx(1000)
    two = [replace(BUSY, job_steps=(0,) * SLOTS), replace(BUSY, id="w-2", job_steps=(0,) * SLOTS)]
    none = SlotTurnover(replace(pace, token_s=0.0), two).wait_s(50, 0.0)
    assert none is not None
    assert SlotTurnover(pace, two).wait_s(50, 0.0) == pytest.approx(none + 50 * 1000 * 0.0001 / 2)


def test_prompts_in_proportion_to_the_steps_are_a_part_of_them() -> None:
    """As of embeddings, where each step has as many prompts: their own cost can't be known."""
    work, lengths = RecentWork(), (2000, *[0] * (len(LENGTHS) - 1))
    for turn in range(4):
        row = worker(finished=2000 * turn, steps=turn * 100, busy_s=turn * 3.0)
        row = replace(row, prefilled_tokens=turn * 7000, lengths=tuple(n * turn for n in lengths))
        work.update([row], 2.0 * turn)
    pace = work.pace("pool")
    assert pace is not None
    assert (pace.step_s, pace.token_s, pace.job_steps) == (pytest.approx(0.03), 0.0, 1.0)


def test_workers_of_an_older_release_announce_only_seconds() -> None:
    work = RecentWork()
    assert work.pace("pool") is None
    work.update([worker(finished=0)], 0.0)
    assert work.pace("pool") is None, "no job has ended"
    work.update([worker(finished=10, job_seconds=20.0)], 2.0)
    pace = work.pace("pool")
    assert pace is not None
    assert (pace.job_s, work.pace("other")) == (pytest.approx(2.0), None)
    old = SlotTurnover(pace, [worker(state=WorkerState.BUSY, jobs=8)])
    assert old.wait_s(81, 0.0) == pytest.approx(80.5 / 8 * 2.0, rel=0.05)


def test_the_pace_follows_what_was_done_lately() -> None:
    work = RecentWork()
    work.update([worker(finished=1000, job_seconds=1000.0)], 0.0)  # counts as one job
    work.update([worker(finished=1099, job_seconds=1297.0)], 1.0)
    pace = work.pace("pool")
    assert pace is not None
    assert pace.job_s == pytest.approx(3.0, rel=0.02)
    work.update([worker(finished=1099, job_seconds=1297.0)], 1000.0)  # no job has ended
    assert work.pace("pool") == pace
    work.update([worker(finished=99, job_seconds=99.0)], 1500.0)  # it was restarted
    pace = work.pace("pool")
    assert pace is not None
    assert pace.job_s == pytest.approx(1.0, rel=0.01)
