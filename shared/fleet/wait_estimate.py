"""How long a queued job may wait, and why: an estimate from what workers announce. Pure.

A job that waits has found no free slot: if there were one, submitting would have leased the job at
once. So a slot that was free when its worker last announced itself has been taken since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.fleet.registry import WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.fleet.slot_turnover import SlotTurnover
from shared.job.states import WorkerState


class WaitEstimate(NamedTuple):
    """For one queued job."""

    wait_s: float | None
    """Seconds until a worker takes the job; None: not known."""
    reason: str
    """Why it waits, in words, if no worker is ready; else empty."""
    range_s: tuple[float, float] | None = None
    """The wait is between these in about four of five cases; None: not known."""


def wait_estimate(
    position: int,
    workers: Sequence[WorkerInfo],
    scale: Scale | None,
    now_s: float,
    turnover: SlotTurnover | None,
    read_s_ago: float,
) -> WaitEstimate:
    """The estimate for the job at `position` (from 1) among the queued jobs of a pool.

    `workers` are the pool's; `scale` is the autoscaler's last decision for it, None if the pool is
    not autoscaled; `now_s` is the time in Unix seconds by Redis' clock. `turnover`: of the workers
    that serve, as of `read_s_ago` seconds ago; None: not known.
    """
    reason = wait_reason(workers, scale, now_s)
    serving = sum(worker.state.serving for worker in workers)
    if scale is not None and scale.stale(now_s):
        scale = None
    return WaitEstimate(_wait_s(position, serving, scale, turnover, read_s_ago), reason)


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


def _wait_s(
    position: int,
    serving: int,
    scale: Scale | None,
    turnover: SlotTurnover | None,
    read_s_ago: float,
) -> float | None:
    """Seconds until a slot is free, with the workers that serve now and those being started."""
    serving_s = turnover.wait_s(position, read_s_ago) if turnover else None
    if scale is None or scale.seen.start_s is None or (serving and serving_s is None):
        return serving_s
    start_s = scale.seen.start_s
    coming = (max(1, scale.wanted) - serving) * (scale.seen.slots or 0)
    if coming <= 0 or (serving_s is not None and serving_s <= start_s):
        return serving_s
    left = position - (turnover.freed(start_s) if turnover else 0) - coming
    if left <= 0:
        return start_s
    job_s = turnover.pace.job_s if turnover else scale.seen.job_s
    return (
        start_s + left * job_s / (coming + (turnover.slots if turnover else 0)) if job_s else None
    )


def _starting(coming: int) -> str:
    if not coming:  # the autoscaler has not seen the job yet
        return "one will be started"
    return "one is being started" if coming == 1 else f"{coming} are being started"
