"""The wait estimate of a queued job, and the mean duration of jobs that it uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.fleet.autoscale_types import Limits, Observation
from shared.fleet.job_durations import WINDOW_S, JobDurations
from shared.fleet.scale_decisions import Scale
from shared.fleet.wait_estimate import SlotTurnover, WaitEstimate, wait_estimate
from shared.job.states import WorkerState
from tests.unit.gateway.test_observation import NOW_S, worker

SEEN = Observation(
    at_s=NOW_S,
    waiting=10,
    waiting_tokens=None,
    oldest_s=1.0,
    running=0,
    arrivals_per_s=1.0,
    job_s=4.0,
    job_tokens=100.0,
    slots=8,
    ready=0,
    starting=0,
    draining=0,
    start_s=40.0,
)
SCALE = Scale("pool", "m", 1, "10 jobs wait", 41.0, SEEN, Limits(0, 3, 5, 0.8, 120, 300), 2.0)


def unknown(**changes: Any) -> Scale:
    return replace(SCALE, seen=replace(SEEN, **changes))


NOTHING = SlotTurnover(None)
READY = worker(jobs=8)
LOADS = worker("w-2", state=WorkerState.STARTING, slots=0)
DRAINS = worker("w-3", state=WorkerState.DRAINING)


@pytest.mark.parametrize(
    ("position", "workers", "scale", "wait_s", "reason"),
    [
        # without an autoscaler
        (3, [], None, None, "no worker runs"),
        (3, [READY], None, None, ""),
        (3, [worker(jobs=5)], None, None, ""),  # three slots looked free a while ago
        (3, [LOADS], None, None, "no worker is ready; one is being started"),
        (3, [DRAINS], None, None, "no worker is ready"),
        # with one
        (4, [READY], SCALE, 2.0, ""),
        (6, [worker(jobs=6)], SCALE, 4.0, ""),
        (3, [READY], unknown(job_s=None), None, ""),
        (
            12,
            [],
            SCALE,
            42.0,
            "no worker runs; one is being started, which takes about 40 s",
        ),
        (
            8,
            [],
            replace(SCALE, wanted=3),
            40.0,
            "no worker runs; 3 are being started, which takes about 40 s",
        ),
        (1, [LOADS], unknown(start_s=None), None, "no worker is ready; one is being started"),
        (
            1,
            [LOADS],
            unknown(start_s=0.4),
            0.4,
            "no worker is ready; one is being started, which takes about 1 s",
        ),
        (
            1,
            [],
            replace(SCALE, wanted=0),
            40.0,
            "no worker runs; one will be started, which takes about 40 s",
        ),
    ],
)
def test_wait_estimate(
    position: int, workers: list[Any], scale: Scale | None, wait_s: float | None, reason: str
) -> None:
    found = wait_estimate(position, workers, scale, NOW_S + 1, NOTHING)
    assert found == WaitEstimate(wait_s, reason)


def test_a_stale_decision_of_the_autoscaler_gives_no_estimate() -> None:
    late_s = NOW_S + 95
    assert wait_estimate(1, [], SCALE, late_s, NOTHING) == WaitEstimate(
        None,
        "no worker is ready, and the autoscaler has been silent for 95 s",
    )
    assert wait_estimate(9, [READY], SCALE, late_s, NOTHING) == WaitEstimate(None, "")


BUSY = worker(state=WorkerState.BUSY, jobs=8)


@pytest.mark.parametrize(
    ("position", "workers", "scale", "job_s", "wait_s"),
    [
        # eight jobs that began together, 3 s ago (and 1 s on average since the heartbeat)
        (1, [replace(BUSY, ages=(3.0,) * 8)], None, 10.0, 6.0),
        (8, [replace(BUSY, ages=(3.0,) * 8)], None, 10.0, 6.0),
        (9, [replace(BUSY, ages=(3.0,) * 8)], None, 10.0, 16.0),
        (17, [replace(BUSY, ages=(3.0,) * 8)], None, 10.0, 26.0),
        # one after the other
        (1, [replace(BUSY, ages=(8, 7, 6, 5, 4, 3, 2, 1))], None, 10.0, 1.0),
        (8, [replace(BUSY, ages=(8, 7, 6, 5, 4, 3, 2, 1))], None, 10.0, 8.0),
        # a sample of more jobs: each age stands for four
        (4, [replace(BUSY, slots=16, jobs=16, ages=(8, 6, 4, 2))], None, 10.0, 1.0),
        (5, [replace(BUSY, slots=16, jobs=16, ages=(8, 6, 4, 2))], None, 10.0, 3.0),
        # they take longer than most: one of them ends every so often
        (1, [replace(BUSY, ages=(30, 25, 20, 15, 12, 11, 10, 9))], None, 8.0, 1.0),
        # nothing has ended for long: the figure is that of other jobs
        (1, [replace(BUSY, ages=(9.0,) * 8)], None, 0.1, None),
        # slots that were free when the worker announced itself have been taken since
        (1, [worker(jobs=0)], None, 10.0, 10.0),
        (9, [worker(jobs=0)], None, 10.0, 20.0),
        (1, [worker(jobs=0)], None, None, None),
        # the KV cache is full: only what runs makes room
        (3, [worker(state=WorkerState.BUSY, jobs=2, ages=(4.0, 1.0))], None, 10.0, 15.0),
        # another worker is being started, in 40 s
        (100, [replace(BUSY, ages=(9.0,) * 8)], replace(SCALE, wanted=2), 100.0, 615.0),
        (16, [replace(BUSY, ages=(9.0,) * 8)], replace(SCALE, wanted=2), 100.0, 90.0),
        (8, [], replace(SCALE, wanted=1), 100.0, 40.0),
    ],
)
def test_when_a_slot_becomes_free(
    position: int, workers: list[Any], scale: Scale | None, job_s: float | None, wait_s: float
) -> None:
    estimate = wait_estimate(position, workers, scale, NOW_S, SlotTurnover(job_s)).wait_s
    assert estimate == (None if wait_s is None else pytest.approx(wait_s))


def test_the_mean_duration_follows_recent_jobs() -> None:
    durations = JobDurations()
    durations.update([worker(finished=0)], 0.0)
    assert durations.mean_s("pool") is None
    durations.update([worker(finished=10, job_seconds=20.0)], 2.0)
    assert durations.mean_s("pool") == pytest.approx(2.0)
    assert durations.mean_s("other") is None
    durations.update([worker(finished=10, job_seconds=20.0)], 1000.0)
    assert durations.mean_s("pool") == pytest.approx(2.0)  # no job has ended
    durations.update([worker(finished=20, job_seconds=120.0)], 1000.0 + 10 * WINDOW_S)
    assert durations.mean_s("pool") == pytest.approx(10.0, rel=0.01)


def test_the_counters_of_a_restarted_worker_begin_at_zero() -> None:
    durations = JobDurations()
    durations.update([worker(finished=1000, job_seconds=1000.0)], 0.0)
    assert durations.mean_s("pool") == pytest.approx(1.0)
    durations.update([worker(finished=99, job_seconds=99 * 3.0)], 1.0)
    assert durations.mean_s("pool") == pytest.approx(3.0, rel=0.05)
