"""How long a queued job may wait, and why: an estimate from what workers announce. Pure.

A job that waits has found no free slot: if there were one, submitting would have leased the job at
once. So a slot that was free when its worker last announced itself has been taken since then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.fleet.registry import HEARTBEAT_S, WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.job.states import WorkerState

_MAX_AGE_FACTOR = 2
"""If even the youngest job has run longer than this many mean durations, the mean is outdated."""


class WaitEstimate(NamedTuple):
    """For one queued job."""

    wait_s: float | None
    """Seconds until a worker takes the job; None: not known."""
    reason: str
    """Why it waits, in words, if no worker is ready; else empty."""
    range_s: tuple[float, float] | None = None
    """The wait is between these in four of five cases; None: not known."""


class SlotTurnover(NamedTuple):
    """How fast the slots of a pool become free."""

    job_s: float | None
    """Mean time in seconds that a job keeps its slot; None: not known."""
    read_s_ago: float = 0.0
    """Seconds since the workers' announcements were read."""


def wait_estimate(
    position: int,
    workers: Sequence[WorkerInfo],
    scale: Scale | None,
    now_s: float,
    turnover: SlotTurnover,
) -> WaitEstimate:
    """The estimate for the job at `position` (from 1) among the queued jobs of a pool.

    `workers` are the pool's; `scale` is the autoscaler's last decision for it, None if the pool is
    not autoscaled; `now_s` is the time in Unix seconds by Redis' clock.
    """
    reason = wait_reason(workers, scale, now_s)
    serving = [worker for worker in workers if worker.state.serving]
    if scale is not None and scale.stale(now_s):
        scale = None
    return WaitEstimate(_wait_s(position, serving, scale, turnover), reason)


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
    position: int, serving: Sequence[WorkerInfo], scale: Scale | None, turnover: SlotTurnover
) -> float | None:
    """Seconds until a slot is free, with the workers that serve now and those being started."""
    job_s = turnover.job_s
    if job_s is None and scale is not None:
        job_s = scale.seen.job_s
    serving_s = None
    slots: list[tuple[float, float]] = []
    if job_s and serving and not _is_outdated(job_s, serving):
        old_s = turnover.read_s_ago + HEARTBEAT_S / 2
        slots = sorted(free for worker in serving for free in _first_free(worker, job_s, old_s))
        serving_s = _nth_s(position, slots, job_s)
    if scale is None or scale.seen.start_s is None or (serving and serving_s is None):
        return serving_s
    start_s = scale.seen.start_s
    coming = (max(1, scale.wanted) - len(serving)) * (scale.seen.slots or 0)
    if coming <= 0 or (serving_s is not None and serving_s <= start_s):
        return serving_s
    left = position - _freed(start_s, slots, job_s) - coming
    if left <= 0:
        return start_s
    return start_s + left * job_s / (coming + sum(n for _, n in slots)) if job_s else None


def _is_outdated(job_s: float, serving: Sequence[WorkerInfo]) -> bool:
    """No job has started for much longer than a mean job takes: these jobs must be longer ones."""
    ages = [age for worker in serving for age in worker.ages]
    return bool(ages) and min(ages) > _MAX_AGE_FACTOR * job_s + HEARTBEAT_S


def _first_free(worker: WorkerInfo, job_s: float, old_s: float) -> Iterator[tuple[float, float]]:
    """When slots of a worker become free for the first time: (seconds from now, slots)."""
    if worker.state is WorkerState.READY and worker.slots > worker.jobs:
        yield job_s, worker.slots - worker.jobs
    ages = worker.ages
    left = [job_s - age - old_s for age in ages if age + old_s < job_s]
    each = worker.jobs / len(ages) if ages else 1.0
    for seconds in left:
        yield seconds, each
    # Jobs that have run longer than the mean, or of unknown age: spread evenly over a mean.
    overdue = len(ages) - len(left) if ages else worker.jobs
    for n in range(1, overdue + 1):
        yield job_s * n / overdue, each


def _nth_s(position: int, slots: Sequence[tuple[float, float]], job_s: float) -> float | None:
    """When the `position`-th slot becomes free; every slot becomes free again after `job_s`."""
    total = sum(n for _, n in slots)
    if not total:
        return None
    rounds, before = divmod(position - 1, total)
    for seconds, n in slots:
        if before < n:
            return rounds * job_s + seconds
        before -= n
    return rounds * job_s + slots[-1][0]


def _freed(until_s: float, slots: Sequence[tuple[float, float]], job_s: float | None) -> float:
    """How many times slots become free within `until_s` seconds."""
    if not job_s:
        return 0.0
    return sum(n * ((until_s - seconds) // job_s + 1) for seconds, n in slots if seconds <= until_s)


def _starting(coming: int) -> str:
    if not coming:  # the autoscaler has not seen the job yet
        return "one will be started"
    return "one is being started" if coming == 1 else f"{coming} are being started"
