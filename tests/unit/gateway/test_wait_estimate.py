"""The wait estimate of a queued job, with the workers that serve and those being started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.fleet.scale_decisions import Limits, Observation, Scale
from shared.fleet.wait_estimate import WaitEstimate, mean_job_s, wait_estimate
from shared.job.states import WorkerState
from tests.unit.worker_info import NOW_S, worker

SEEN = Observation(
    at_s=NOW_S,
    waiting=10,
    oldest_s=1.0,
    running=0,
    job_s=4.0,
    slots=8,
    ready=0,
    starting=0,
    draining=0,
    start_s=40.0,
)
SCALE = Scale("pool", "m", 1, "10 jobs wait", SEEN, Limits(0, 3, 120, 300), 2.0)


def unknown(**changes: Any) -> Scale:
    return replace(SCALE, seen=replace(SEEN, **changes))


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
        (3, [READY], unknown(job_s=None), None, ""),
        (4, [READY], SCALE, 2.0, ""),
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
    found = wait_estimate(position, workers, scale, NOW_S + 1)
    assert found == WaitEstimate(wait_s, reason)


def test_a_stale_decision_of_the_autoscaler_gives_no_estimate() -> None:
    late_s = NOW_S + 95
    assert wait_estimate(1, [], SCALE, late_s) == WaitEstimate(
        None,
        "no worker is ready, and the autoscaler has been silent for 95 s",
    )
    assert wait_estimate(9, [READY], SCALE, late_s) == WaitEstimate(None, "")


BUSY = worker(state=WorkerState.BUSY, jobs=8)


@pytest.mark.parametrize(
    ("position", "serving", "scale", "job_s", "wait_s"),
    [
        # another worker is being started, in 40 s
        (100, [BUSY], replace(SCALE, wanted=2), 100.0, 595),
        (17, [BUSY], replace(SCALE, wanted=2), 100.0, 76.25),
        (9, [BUSY], replace(SCALE, wanted=2), 100.0, 40.0),
        (8, [], replace(SCALE, wanted=1), 100.0, 40.0),
        (12, [BUSY], None, 4.0, 6.0),
        (12, [READY, DRAINS], None, 4.0, 6.0),
        # the KV cache is full: only what runs makes room
        (16, [worker(state=WorkerState.BUSY, jobs=2)], None, 10.0, 80.0),
        (1, [worker(state=WorkerState.BUSY, jobs=0)], None, 10.0, None),
    ],
)
def test_workers_that_serve_and_those_to_come(
    position: int, serving: list[Any], scale: Scale | None, job_s: float, wait_s: float | None
) -> None:
    workers = [replace(each, job_s=job_s) for each in serving]
    assert wait_estimate(position, workers, scale, NOW_S).wait_s == wait_s


def test_the_time_of_a_job_is_the_mean_of_the_pools_slots() -> None:
    workers = [worker(job_s=2.0, slots=8), worker(job_s=6.0, slots=24), LOADS]
    assert mean_job_s(workers) == 5.0
    assert mean_job_s([LOADS, READY]) is None
