"""What the autoscaler sees: rates and means from two looks at counters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gateway.ops.autoscaler.observation import WINDOW_S, PoolSnapshot, RateState, observe
from shared.fleet.autoscale_types import Observation, PolicyState
from shared.fleet.registry import WorkerInfo
from shared.job.states import WorkerState

NOW_S = 1_800_000_000.0
TICK_S = 2.0


def worker(worker_id: str = "w-1", **changes: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "id": worker_id,
        "pool": "pool",
        "state": WorkerState.READY,
        "engine": "simulated",
        "models": ("m",),
        "slots": 8,
        "running": 0,
        "jobs": 0,
        "kv_usage": 0.0,
        "host": "host",
        "pid": 1,
        "version": "0.1.0",
        "metrics_port": 1,
    }
    return WorkerInfo(**values | changes)


def snapshot(*workers: WorkerInfo, at_s: float = 0.0, **changes: Any) -> PoolSnapshot:
    values: dict[str, Any] = {"waiting": 0, "waiting_bytes": 0.0, "oldest_s": 0.0, "running": 0}
    return PoolSnapshot(at_s=NOW_S + at_s, workers=workers, **values | changes)


def see(*looks: PoolSnapshot, state: PolicyState | None = None) -> Observation:
    """What is seen at the last of several looks."""
    rates: RateState | None = None
    for one in looks:
        seen, rates = observe(one, rates, state)
    return seen


def test_an_empty_pool_that_nobody_knows_anything_of() -> None:
    seen = see(snapshot())
    assert seen == Observation(
        at_s=NOW_S,
        waiting=0,
        waiting_tokens=0.0,
        oldest_s=0.0,
        running=0,
        arrivals_per_s=0.0,
        job_s=None,
        job_tokens=None,
        slots=None,
        ready=0,
        starting=0,
        draining=0,
        start_s=None,
    )


def test_what_redis_says_is_passed_on() -> None:
    seen = see(snapshot(waiting=7, oldest_s=3.5, running=2))
    assert (seen.waiting, seen.oldest_s, seen.running) == (7, 3.5, 2)
    assert seen.waiting_tokens is None  # no job has ended yet


@pytest.mark.parametrize(
    ("states", "ready", "starting", "draining"),
    [
        ([WorkerState.READY, WorkerState.BUSY, WorkerState.BUSY], 3, 0, 0),
        ([WorkerState.STARTING, WorkerState.READY], 1, 1, 0),
        ([WorkerState.DRAINING, WorkerState.DRAINING], 0, 0, 2),
    ],
)
def test_workers_are_counted_by_state(
    states: list[WorkerState], ready: int, starting: int, draining: int
) -> None:
    seen = see(snapshot(*(worker(f"w-{n}", state=state) for n, state in enumerate(states))))
    assert (seen.ready, seen.starting, seen.draining) == (ready, starting, draining)


@pytest.mark.parametrize(
    ("wanted", "asked_ago_s", "start_s", "here", "starting"),
    [
        (3, 10.0, None, 1, 2),
        (3, 59.0, None, 1, 2),
        (3, 61.0, None, 1, 0),  # there is nobody who could give them
        (3, 61.0, 40.0, 1, 2),  # twice the usual time has not passed
        (3, 81.0, 40.0, 1, 0),
        (1, 10.0, None, 2, 0),
    ],
)
def test_workers_that_were_asked_for_are_starting(
    wanted: int, asked_ago_s: float, start_s: float | None, here: int, starting: int
) -> None:
    workers = [worker(f"w-{n}", start_s=start_s) for n in range(here)]
    state = PolicyState(wanted, NOW_S - asked_ago_s)
    assert see(snapshot(*workers), state=state).starting == starting


def test_a_worker_that_was_asked_for_and_loads_counts_once() -> None:
    loads = worker(state=WorkerState.STARTING)
    assert see(snapshot(loads), state=PolicyState(2, NOW_S)).starting == 2


def test_a_worker_that_died_while_it_loaded_is_not_waited_for_for_ever() -> None:
    loads = worker(state=WorkerState.STARTING)
    assert see(snapshot(loads), snapshot(loads, at_s=599)).starting == 1
    assert see(snapshot(loads), snapshot(loads, at_s=300), snapshot(loads, at_s=601)).starting == 0


def test_steady_arrivals_are_found() -> None:
    looks = [
        snapshot(worker(finished=10 * n, job_seconds=20.0 * n), at_s=n * TICK_S) for n in range(60)
    ]
    seen = see(*looks)
    assert seen.arrivals_per_s == pytest.approx(5.0, rel=0.05)
    assert seen.job_s == pytest.approx(2.0)


def test_a_burst_is_spread_over_the_window() -> None:
    seen = see(snapshot(), snapshot(at_s=TICK_S, waiting=300))
    assert seen.arrivals_per_s == pytest.approx(300 / WINDOW_S, rel=0.05)


@pytest.mark.parametrize("tick_s", [0.5, 2.0, 10.0])
def test_rates_do_not_depend_on_how_often_one_looks(tick_s: float) -> None:
    """A minute of 4 jobs a second, then a minute of nothing."""
    looks = []
    for n in range(int(120 / tick_s) + 1):
        at_s = n * tick_s
        looks.append(snapshot(worker(finished=int(4 * min(at_s, 60))), at_s=at_s))
    assert see(*looks).arrivals_per_s == pytest.approx(
        4 * (math.exp(-60 / WINDOW_S) - math.exp(-120 / WINDOW_S)), rel=0.02
    )


def test_what_moves_from_the_queue_to_a_worker_has_not_arrived_again() -> None:
    seen = see(
        snapshot(waiting=10),
        snapshot(worker(), at_s=2, waiting=4, running=6),
        snapshot(worker(finished=6), at_s=4, running=4),
    )
    assert seen.arrivals_per_s == pytest.approx(0.0)


def test_counters_that_are_announced_late_are_no_arrivals() -> None:
    busy = [snapshot(worker(), running=8), snapshot(worker(), at_s=2, running=0)]
    assert see(*busy).arrivals_per_s == 0.0
    late = see(*busy, snapshot(worker(finished=8), at_s=4))
    assert late.arrivals_per_s == pytest.approx(0.0, abs=0.02)


def test_workers_come_and_go() -> None:
    seen = see(
        snapshot(worker("w-1", finished=100, job_seconds=100.0)),
        snapshot(worker("w-1", finished=104, job_seconds=108.0), at_s=2),
        snapshot(
            worker("w-2", finished=4, job_seconds=16.0), at_s=4
        ),  # its first, the other's gone
    )
    kept = math.exp(-2 / WINDOW_S)
    # What was there at the first look has the weight of one job.
    jobs = 4 + kept * (4 + kept * 1)
    seconds = 16 + kept * (8 + kept * 1.0)
    assert seen.job_s == pytest.approx(seconds / jobs)


def test_a_worker_id_that_is_used_again_begins_anew() -> None:
    seen = see(
        snapshot(worker(finished=100, job_seconds=100.0)),
        snapshot(worker(finished=5, job_seconds=50.0), at_s=2),
    )
    kept = math.exp(-2 / WINDOW_S)
    assert seen.job_s == pytest.approx((50 + kept) / (5 + kept))
    assert seen.arrivals_per_s > 0


def test_what_was_known_stays_known_when_all_is_at_zero() -> None:
    worked = worker(finished=10, job_seconds=40.0, prompt_tokens=100, completion_tokens=300)
    first = replace(worked, start_s=12.0)
    seen = see(snapshot(first), *(snapshot(at_s=hour * 3600.0) for hour in range(1, 48)))
    assert (seen.job_s, seen.job_tokens, seen.slots) == (4.0, 40.0, 8)
    assert seen.start_s == 12.0
    assert seen.ready == 0
    assert seen.arrivals_per_s == pytest.approx(0.0)


def test_a_worker_that_loads_hides_neither_slots_nor_time_to_start() -> None:
    loads = worker("w-2", state=WorkerState.STARTING, slots=0)
    seen = see(snapshot(worker(start_s=10.0), loads, worker("w-3", start_s=20.0)))
    assert (seen.slots, seen.start_s) == (8, 15.0)
    assert see(snapshot(worker(start_s=10.0)), snapshot(loads, at_s=2)).slots == 8


def test_waiting_tokens_are_scaled_by_what_workers_have_told() -> None:
    done = worker(
        finished=10, request_bytes=1000, prompt_tokens=200, completion_tokens=500, job_seconds=1.0
    )
    seen = see(snapshot(done, waiting=4, waiting_bytes=4 * 300.0))
    assert seen.waiting_tokens == pytest.approx(4 * (300 * 0.2 + 50))
    assert seen.job_tokens == pytest.approx(70.0)
    older = replace(done, request_bytes=0)  # does not tell
    seen = see(snapshot(older, waiting=4, waiting_bytes=4 * 300.0))
    assert seen.waiting_tokens == pytest.approx(4 * (300 * 0.25 + 50))


def test_a_clock_that_stands_still_or_goes_back_is_survived() -> None:
    seen = see(snapshot(waiting=1), snapshot(waiting=50), snapshot(at_s=-100, waiting=90))
    assert seen.arrivals_per_s == 0.0
    assert seen.waiting == 90
