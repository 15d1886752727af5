"""How many workers a pool should have: what is seen of it, and a formula. Pure.

As many as give each job that waits or runs a slot, at once; fewer only when fewer have been enough
for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.fleet.registry import Heartbeat
from shared.fleet.scale_decisions import Limits, Observation
from shared.fleet.wait_estimate import mean_job_s
from shared.job.states import WorkerState
from shared.store.views import LaneDepth

_SLOTS = 32
"""Of a worker, until one has announced its own. vLLM has up to 256: too few only start more."""
_LOADS_WITHIN_S = 600.0
"""A worker that was killed while it loaded must not count as loading for an hour."""
_TAKEN_WITHIN_S = 2.0
"""A free slot has taken a waiting job by then."""
_GAP_S = 90.0
"""Between two decisions at most: after an outage the last one says nothing about idle time."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, and what the next one needs of it."""

    wanted: int
    why: str
    seen: Observation
    needs: tuple[tuple[float, int], ...]
    """(time, workers needed) in the last `down_after_s`, falling: the first is the most."""
    busy_at_s: float
    """When a job last waited or ran."""


def observe(
    at_s: float,
    lanes: Sequence[LaneDepth],
    heartbeats: Sequence[Heartbeat],
    before: Observation | None,
) -> Observation:
    """The pool now. What only workers announce is as `before` while there are none."""
    heartbeats = [each for each in heartbeats if not each.worker.failure]
    workers = [each.worker for each in heartbeats]
    states = [worker.state for worker in workers]
    slots, start_s, job_s = (
        (before.slots, before.start_s, before.job_s) if before else (None, None, None)
    )
    starts_s = [worker.start_s for worker in workers if worker.start_s is not None]
    if starts_s:
        start_s = sum(starts_s) / len(starts_s)
    job_s = mean_job_s(workers) or job_s
    loads_within_s = max(_LOADS_WITHIN_S, 3 * (start_s or 0.0))
    return Observation(
        at_s=at_s,
        waiting=sum(lane.waiting for lane in lanes),
        oldest_s=max((lane.oldest_s for lane in lanes), default=0.0),
        running=sum(lane.in_progress for lane in lanes),
        slots=max((worker.slots for worker in workers), default=0) or slots,
        # A paused worker is there: another one, which would be paused too, does not help.
        ready=sum(state.serving or state is WorkerState.PAUSED for state in states),
        # A worker announces itself once before it loads.
        starting=sum(
            worker.state is WorkerState.STARTING and age_s < loads_within_s
            for worker, age_s in heartbeats
        ),
        draining=states.count(WorkerState.DRAINING),
        start_s=start_s,
        job_s=job_s,
    )


def decide(now: Observation, limits: Limits, last: Decided | None) -> Decided:
    """How many workers to have. `last`: the last decision, None if there was none."""
    if last is None or not 0 <= now.at_s - last.seen.at_s <= _GAP_S:
        # The present workers count as what has been needed until now.
        present = now.ready + now.starting
        last = Decided(present, "", now, ((now.at_s, present),), now.at_s)
    slots = now.slots or _SLOTS
    # One that has just loaded takes its jobs only now.
    settled = now.oldest_s > _TAKEN_WITHIN_S and now.ready <= last.seen.ready
    if settled and now.running >= now.ready > 0:
        # Jobs wait although slots are free: memory limits a worker to what it runs.
        slots = min(slots, math.ceil(now.running / now.ready))
    busy = now.waiting + now.running
    need = math.ceil(busy / slots)
    busy_at_s = now.at_s if busy else last.busy_at_s
    kept = [
        (at_s, workers)
        for at_s, workers in last.needs
        if now.at_s - at_s < limits.down_after_s and workers > min(need, limits.max)
    ]
    needs = (*kept, (now.at_s, min(need, limits.max)))
    wanted, why = need, f"{now.waiting} jobs wait and {now.running} run, {slots} a worker"
    if kept:
        wanted, why = kept[0][1], f"needed within the last {limits.down_after_s:g} s"
    if now.starting and now.ready + now.starting > wanted:
        wanted, why = now.ready + now.starting, "a worker that loads is not stopped"
    if not wanted and now.ready and now.at_s - busy_at_s < limits.idle_s:
        wanted, why = 1, f"idle for less than {limits.idle_s:g} s"
    if wanted > limits.max:
        wanted, why = limits.max, f"{why}; the maximum is {limits.max}"
    if wanted < limits.min:
        wanted, why = limits.min, f"{why}; the minimum is {limits.min}"
    return Decided(wanted, why, now, needs, busy_at_s)
