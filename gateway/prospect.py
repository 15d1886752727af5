"""What a job that waits is told: how long it may take, and what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.registry import WorkerInfo
from shared.scaling import Scale
from shared.states import WorkerState

_SERVES = (WorkerState.READY, WorkerState.BUSY)


class Prospect(NamedTuple):
    """Of one job in a lane."""

    wait_s: float | None
    """Until a worker takes it; None: not known."""
    waits_for: str
    """In a few words, if no worker is ready to take it; else empty."""


def prospect(
    position: int, workers: Sequence[WorkerInfo], scale: Scale | None, now_s: float
) -> Prospect:
    """For the job at `position` of a pool, whose workers and whose last decision these are.

    `scale` is None where no autoscaler looks after the pool; `now_s` is by Redis' clock.
    """
    serving = [worker for worker in workers if worker.state in _SERVES]
    if scale is not None and scale.stale(now_s):
        silent_s = now_s - scale.at_s
        words = f"no worker is ready, and the autoscaler has been silent for {silent_s:.0f} s"
        return Prospect(None, "" if serving else words)
    queue_s = _queue_s(position, serving, scale)
    if serving:
        return Prospect(queue_s, "")
    coming = sum(worker.state is WorkerState.STARTING for worker in workers)
    runs = "no worker is ready" if workers else "no worker runs"
    if scale is None:
        return Prospect(None, f"{runs}; {_they(coming)}" if coming else runs)
    start_s = scale.seen.start_s
    wait_s = None if start_s is None or queue_s is None else start_s + queue_s
    takes = "" if start_s is None else f", which takes about {max(1.0, start_s):.0f} s"
    return Prospect(wait_s, f"{runs}; {_they(max(coming, scale.wanted))}{takes}")


def _queue_s(position: int, serving: Sequence[WorkerInfo], scale: Scale | None) -> float | None:
    """Until a slot is free, with workers that serve now, or with those that are wanted."""
    free = sum(max(0, worker.slots - worker.jobs) for worker in serving)
    if position <= free:
        return 0.0
    if scale is None or scale.seen.job_s is None:
        return None
    slots = sum(worker.slots for worker in serving)
    if not serving:
        slots = free = max(1, scale.wanted) * (scale.seen.slots or 0)
    return max(0, position - free) * scale.seen.job_s / slots if slots else None


def _they(coming: int) -> str:
    if not coming:  # the autoscaler has not seen the job yet
        return "one will be started"
    return "one is being started" if coming == 1 else f"{coming} are being started"
