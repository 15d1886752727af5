"""The sentences in which the autoscale policy gives its reasons. Pure."""

from __future__ import annotations

import math

from gateway.ops.autoscaler.backlog import Backlog, WorkerSupply
from shared.fleet.autoscale_types import Observation

IDLE = "nothing waits or runs"


def running(jobs: int) -> str:
    """`3 jobs run`."""
    return f"{_count(jobs, 'job')} {_verb(jobs, 'run')}"


def waiting(jobs: int) -> str:
    """`3 jobs wait`."""
    return f"{_count(jobs, 'job')} {_verb(jobs, 'wait')}"


def load(arrivals_per_s: float, job_s: float, busy_slots: float, worker_slots: int) -> str:
    """How many slots a steady load keeps busy."""
    return (
        f"{_figure(arrivals_per_s)} jobs/s of {_figure(job_s)} s each keep "
        f"{_figure(busy_slots)} slots busy; a worker has {worker_slots}"
    )


def backlog(now: Observation, supply: WorkerSupply, backlog: Backlog) -> str:
    """How many jobs wait, and how much work they are."""
    if now.slots is None:
        return f"{waiting(now.waiting)}, and no worker has run yet"
    if now.job_s is None:
        return f"{waiting(now.waiting)}, and no job has ended yet"
    workers = max(1, supply.ready)
    seconds = backlog.jobs * backlog.job_s / (workers * supply.slots)
    work = f"about {_figure(seconds)} s of work for {_count(workers, 'worker')}"
    return f"{waiting(now.waiting)} ({work})"


def enough_supply(supply: WorkerSupply, clear_s: float, start_s: float) -> str:
    """When the present workers have cleared the queue, beside what a new worker takes to start."""
    ready = f"{_count(supply.ready, 'ready worker')}" if supply.ready else ""
    starting = f"{_count(supply.size - supply.ready, 'starting worker')}" if supply.loading else ""
    who = " and ".join(filter(None, (ready, starting)))
    when = f" in {_figure(clear_s)} s" if math.isfinite(clear_s) else ""
    verb = _verb(supply.size, "clear")
    return f"{who} {verb} the queue{when}; a new worker takes {_figure(start_s)} s to start"


def stalled(now: Observation, still_s: float) -> str:
    """A queue from which no job is taken."""
    return (
        f"{waiting(now.waiting)}, the oldest for {_figure(now.oldest_s)} s, and no slot has "
        f"become free for {_figure(still_s)} s"
    )


def fewer_enough(for_s: float, down_after_s: float) -> str:
    """Why workers are kept although fewer are needed now."""
    return f"fewer have been enough for {for_s:.0f} of {down_after_s:.0f} s"


def enough(workers: int, for_s: float) -> str:
    """`2 workers have been enough for 120 s`."""
    has = "has" if workers == 1 else "have"
    return f"{_count(workers, 'worker')} {has} been enough for {for_s:.0f} s"


def idle(idle_s: float, limit_s: float | None = None) -> str:
    """`idle for 10 of 300 s`, or without a limit `idle for 300 s`."""
    of = "" if limit_s is None else f" of {limit_s:.0f}"
    return f"idle for {idle_s:.0f}{of} s"


def keeping_starting(workers: int) -> str:
    """`keeping 2 workers that are still starting`."""
    be = "is" if workers == 1 else "are"
    return f"keeping {_count(workers, 'worker')} that {be} still starting"


def at_limit(reason: str, workers: int, limit: str) -> str:
    """A reason that one of the operator's limits (`maximum`, `minimum`) overrides."""
    return f"{reason}; {workers} is the {limit}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
