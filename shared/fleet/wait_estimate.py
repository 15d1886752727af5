"""How long a queued job may wait, and why: an estimate from what workers announce. Pure.

A job waits until the jobs before it have slots, of which one becomes free each time that a job
takes, divided by their number. Workers that the autoscaler starts count from their usual start on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.fleet.registry import WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.job.states import WorkerState


class WaitEstimate(NamedTuple):
    """For one queued job."""

    wait_s: float | None
    """Seconds until a worker takes the job; None: not known."""
    reason: str
    """Why it waits, in words, if no worker is ready; else empty."""


def wait_estimate(
    position: int,
    workers: Sequence[WorkerInfo],
    scale: Scale | None,
    now_s: float,
) -> WaitEstimate:
    """The estimate for the job at `position` (from 1) among the queued jobs of a pool.

    `workers` are the pool's; `scale` is the autoscaler's last decision for it, None if the pool is
    not autoscaled; `now_s` is the time in Unix seconds by Redis' clock.
    """
    reason = wait_reason(workers, scale, now_s)
    if scale is not None and scale.stale(now_s):
        scale = None
    return WaitEstimate(_wait_s(position, workers, scale), reason)


def mean_job_s(workers: Sequence[WorkerInfo]) -> float | None:
    """The mean time of the last jobs of these workers; None: not known."""
    known = [(worker.job_s, worker.slots) for worker in workers if worker.job_s]
    slots = sum(slots for _, slots in known)
    return sum(job_s * slots for job_s, slots in known) / slots if slots else None


def wait_reason(workers: Sequence[WorkerInfo], scale: Scale | None, now_s: float) -> str:
    """Why the jobs of a pool wait, in words, if no worker is ready to take one; else empty."""
    if any(worker.state.serving for worker in workers):
        return ""
    if scale is not None and scale.stale(now_s):
        silent_s = now_s - scale.at_s
        return f"no worker is ready, and the autoscaler has been silent for {silent_s:.0f} s"
    if workers and all(worker.state is WorkerState.PAUSED for worker in workers):
        return f"the workers are paused: {workers[0].reason}"
    coming = sum(worker.state is WorkerState.STARTING for worker in workers)
    runs = "no worker is ready" if workers else "no worker runs"
    if scale is None:
        return f"{runs}; {_starting(coming)}" if coming else runs
    start_s = scale.seen.start_s
    takes = "" if start_s is None else f", which takes about {max(1.0, start_s):.0f} s"
    return f"{runs}; {_starting(max(coming, scale.wanted))}{takes}"


def _wait_s(position: int, workers: Sequence[WorkerInfo], scale: Scale | None) -> float | None:
    """Seconds until a slot is free, with the workers that serve now and those being started."""
    job_s = mean_job_s(workers) or (scale and scale.seen.job_s)
    serving = [worker for worker in workers if worker.state.serving]
    slots = sum(map(_slots, serving))
    wait_s = position / slots * job_s if slots and job_s else None
    if scale is None or scale.seen.start_s is None or (serving and wait_s is None):
        return wait_s
    start_s = scale.seen.start_s
    coming = (max(1, scale.wanted) - len(serving)) * (scale.seen.slots or 0)
    if coming <= 0 or (wait_s is not None and wait_s <= start_s):
        return wait_s
    before = slots * start_s / job_s if job_s else 0  # jobs that have slots until then
    left = position - before - coming
    if left <= 0:
        return start_s
    return start_s + left * job_s / (slots + coming) if job_s else None


def _slots(worker: WorkerInfo) -> int:
    """Of one that claims no more, as its memory is full, what runs makes room."""
    return worker.slots if worker.state is WorkerState.READY else worker.jobs


def _starting(coming: int) -> str:
    if not coming:  # the autoscaler has not seen the job yet
        return "one will be started"
    return "one is being started" if coming == 1 else f"{coming} are being started"
