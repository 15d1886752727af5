"""What a job that waits is told_to_drain: how long it may take, and what it waits for. Pure.

A job that waits at all has found no free slot: where there is one, submitting leases the job at
once. So a slot that looked free when its worker last announced itself has been taken since then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.fleet.registry import HEARTBEAT_S, WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.protocol.states import WorkerState

_TIMES_TOO_OLD = 2
"""Times longer than a job takes: where even the youngest one runs so long, the figure is wrong."""


class Prospect(NamedTuple):
    """Of one job in a lane."""

    wait_s: float | None
    """Until a worker takes it; None: not known."""
    waits_for: str
    """In a few words, if no worker is ready to take it; else empty."""


class Running(NamedTuple):
    """How fast a pool's slots become free."""

    job_s: float | None
    """How long a job keeps its slot; None: not known."""
    looked_s: float = 0.0
    """How long ago the workers' announcements were read."""


def prospect(
    position: int,
    workers: Sequence[WorkerInfo],
    scale: Scale | None,
    now_s: float,
    running: Running,
) -> Prospect:
    """For the job at `position` of a pool, whose workers and whose last decision these are.

    `scale` is None where no autoscaler looks after the pool; `now_s` is by Redis' clock.
    """
    waits_for = reason(workers, scale, now_s)
    serving = [worker for worker in workers if worker.state.serving]
    if scale is not None and scale.stale(now_s):
        scale = None
    return Prospect(_wait_s(position, serving, scale, running), waits_for)


def reason(workers: Sequence[WorkerInfo], scale: Scale | None, now_s: float) -> str:
    """What a job of this pool waits for, if no worker is ready to take it; else empty."""
    if any(worker.state.serving for worker in workers):
        return ""
    if scale is not None and scale.stale(now_s):
        silent_s = now_s - scale.at_s
        return f"no worker is ready, and the autoscaler has been silent for {silent_s:.0f} s"
    coming = sum(worker.state is WorkerState.STARTING for worker in workers)
    runs = "no worker is ready" if workers else "no worker runs"
    if scale is None:
        return f"{runs}; {_they(coming)}" if coming else runs
    start_s = scale.seen.start_s
    takes = "" if start_s is None else f", which takes about {max(1.0, start_s):.0f} s"
    return f"{runs}; {_they(max(coming, scale.wanted))}{takes}"


def _wait_s(
    position: int, serving: Sequence[WorkerInfo], scale: Scale | None, running: Running
) -> float | None:
    """Until a slot is free for it, with the workers that serve now and those that are wanted."""
    job_s = running.job_s
    if job_s is None and scale is not None:
        job_s = scale.seen.job_s
    present_s = None
    slots: list[tuple[float, float]] = []
    if job_s and serving and not _contradicted(job_s, serving):
        old_s = running.looked_s + HEARTBEAT_S / 2
        slots = sorted(free for worker in serving for free in _frees(worker, job_s, old_s))
        present_s = _nth_s(position, slots, job_s)
    if scale is None or scale.seen.start_s is None or (serving and present_s is None):
        return present_s
    start_s = scale.seen.start_s
    coming = (max(1, scale.wanted) - len(serving)) * (scale.seen.slots or 0)
    if coming <= 0 or (present_s is not None and present_s <= start_s):
        return present_s
    left = position - _freed(start_s, slots, job_s) - coming
    if left <= 0:
        return start_s
    return start_s + left * job_s / (coming + sum(n for _, n in slots)) if job_s else None


def _contradicted(job_s: float, serving: Sequence[WorkerInfo]) -> bool:
    """No job has begun for much longer than a job takes: these must be longer ones."""
    ages = [age for worker in serving for age in worker.ages]
    return bool(ages) and min(ages) > _TIMES_TOO_OLD * job_s + HEARTBEAT_S


def _frees(worker: WorkerInfo, job_s: float, old_s: float) -> Iterator[tuple[float, float]]:
    """(in how many seconds, how many) slots of a worker become free for the first time."""
    if worker.state is WorkerState.READY and worker.slots > worker.jobs:
        yield job_s, worker.slots - worker.jobs
    ages = worker.ages
    left = [job_s - age - old_s for age in ages if age + old_s < job_s]
    each = worker.jobs / len(ages) if ages else 1.0
    for seconds in left:
        yield seconds, each
    # Those that take longer than most, or whose age is not known: one after the other.
    late = len(ages) - len(left) if ages else worker.jobs
    for n in range(1, late + 1):
        yield job_s * n / late, each


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
    """How often slots become free until then."""
    if not job_s:
        return 0.0
    return sum(n * ((until_s - seconds) // job_s + 1) for seconds, n in slots if seconds <= until_s)


def _they(coming: int) -> str:
    if not coming:  # the autoscaler has not seen the job yet
        return "one will be started"
    return "one is being started" if coming == 1 else f"{coming} are being started"
