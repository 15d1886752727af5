"""The wait estimate of a queued job, with the workers that serve and those being started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.fleet.recent_work import Pace
from shared.fleet.scale_decisions import Limits, Observation, Scale
from shared.fleet.slot_turnover import SlotTurnover
from shared.fleet.wait_estimate import WaitEstimate, wait_estimate
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
    found = wait_estimate(position, workers, scale, NOW_S + 1, None, 0.0)
    assert found == WaitEstimate(wait_s, reason)


def test_a_stale_decision_of_the_autoscaler_gives_no_estimate() -> None:
    late_s = NOW_S + 95
    assert wait_estimate(1, [], SCALE, late_s, None, 0.0) == WaitEstimate(
        None,
        "no worker is ready, and the autoscaler has been silent for 95 s",
    )
    assert wait_estimate(9, [READY], SCALE, late_s, None, 0.0) == WaitEstimate(None, "")


BUSY = worker(state=WorkerState.BUSY, jobs=8)


@pytest.mark.parametrize(
    ("position", "serving", "scale", "job_s", "wait_s"),
    [
        # another worker is being started, in 40 s
        (100, [BUSY], replace(SCALE, wanted=2), 100.0, pytest.approx(595, abs=6)),
        (17, [BUSY], replace(SCALE, wanted=2), 100.0, pytest.approx(76, abs=6)),
        (9, [BUSY], replace(SCALE, wanted=2), 100.0, 40.0),
        (8, [], replace(SCALE, wanted=1), 100.0, 40.0),
        # the KV cache is full: only what runs makes room
        (16, [worker(state=WorkerState.BUSY, jobs=2)], None, 10.0, pytest.approx(77.5, rel=0.02)),
    ],
)
def test_workers_that_serve_and_those_to_come(
    position: int, serving: list[Any], scale: Scale | None, job_s: float, wait_s: float
) -> None:
    turnover = SlotTurnover(Pace.of_job(job_s), serving) if serving else None
    found = wait_estimate(position, serving, scale, NOW_S, turnover, 0.0)
    assert found.wait_s == wait_s
