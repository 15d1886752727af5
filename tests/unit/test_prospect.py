"""What a waiting job is told: a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.prospect import prospect
from shared.autoscale import Limits, Observation
from shared.scaling import Scale
from shared.states import WorkerState
from tests.unit.test_observation import NOW_S, worker

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


READY = worker(jobs=8)
LOADS = worker("w-2", state=WorkerState.STARTING, slots=0)
DRAINS = worker("w-3", state=WorkerState.DRAINING)


@pytest.mark.parametrize(
    ("position", "workers", "scale", "wait_s", "waits_for"),
    [
        # without an autoscaler
        (3, [], None, None, "no worker runs"),
        (3, [READY], None, None, ""),
        (3, [worker(jobs=5)], None, 0.0, ""),  # three slots are free
        (3, [LOADS], None, None, "no worker is ready; one is being started"),
        (3, [DRAINS], None, None, "no worker is ready"),
        # with one
        (4, [READY], SCALE, 2.0, ""),
        (4, [worker(jobs=6)], SCALE, 1.0, ""),
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
def test_prospect(
    position: int, workers: list[Any], scale: Scale | None, wait_s: float | None, waits_for: str
) -> None:
    assert prospect(position, workers, scale, NOW_S + 1) == (wait_s, waits_for)


def test_a_silent_autoscaler_promises_nothing() -> None:
    late_s = NOW_S + 95
    assert prospect(1, [], SCALE, late_s) == (
        None,
        "no worker is ready, and the autoscaler has been silent for 95 s",
    )
    assert prospect(9, [READY], SCALE, late_s) == (None, "")
