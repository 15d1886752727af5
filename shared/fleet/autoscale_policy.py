"""How many workers a pool should have, and why. Pure: an observation in, a decision out.

Work is counted in slot-seconds: a job takes one slot of a worker for `job_s`, a worker gives
`slots` slot-seconds a second. What waits is judged by what will be left of it once a worker that is
asked for now has loaded. Those that load already do their part from when they will be ready, so
that the next look does not ask for them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shared.fleet.backlog import Backlog, WorkerSupply

_SLOTS = 32
"""Of a worker, while none has told_to_drain. Less than vLLM's 256: the first to come wait the longest."""
_START_S = 60.0
"""A worker's start, while none has been seen."""
_LATE = 0.1
"""A worker that should be ready by now is expected after this share of the usual time."""
_SLACK = 1.1
"""A worker is added when the load is so much more than those there should carry, and goes when the
others can carry it: a load between the two changes nothing."""
_COST_RATIO = 10.0
"""The estimate of what the waiting jobs cost moves a job's time by no more, either way."""
_LEAST_TARGET_S = 1.0
_LEAST_JOB_S = 0.001
_CLAIMED_S = 2.0
"""A slot that is free has its job by then."""
_SETTLED_S = 10.0
"""A worker that has just become ready has filled its slots by then, if anything waits."""
_STILL_SLOTS = 3.0
"""The queue stands still if none was taken while so many slots should have become free."""
_JITTER_S = 0.05
_GAP_S = 90.0
"""Between two looks. In a longer one nobody saw that fewer were enough, or that nothing ran."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator sets; see the settings of the same names."""

    min: int
    max: int
    target_wait_s: float
    utilization: float
    down_after_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A pool at one moment. None: not known yet, because no worker has told_to_drain."""

    at_s: float
    """Redis' clock, Unix seconds."""
    waiting: int
    """Jobs in the lanes."""
    waiting_tokens: float | None
    """Estimate of what the waiting jobs will cost, prompt and completion."""
    oldest_s: float
    """Longest wait in the lanes."""
    running: int
    """Jobs that workers hold."""
    arrivals_per_s: float
    """Jobs, averaged over the last half minute or so."""
    job_s: float | None
    """Mean time from lease to end of the jobs that ended lately."""
    job_tokens: float | None
    """Their mean prompt and completion tokens."""
    slots: int | None
    """Jobs that one worker runs at once."""
    ready: int
    """Workers that take jobs, busy ones included."""
    starting: int
    """Workers that load their model, or were asked for and have not announced themselves."""
    draining: int
    start_s: float | None
    """From asking for a worker to its first claim."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What one decision leaves for the next."""

    wanted: int
    changed_at_s: float
    """When `wanted` last changed."""
    needs: tuple[tuple[float, int], ...] = ()
    """(time, workers needed) of the last `down_after_s`, without those that a later one hides that
    is no smaller."""
    busy_at_s: float = 0.0
    """When something last waited or ran."""
    at_s: float = 0.0
    """When the decision was made."""
    asked: tuple[tuple[float, int], ...] = ()
    """(time, workers) of those that are not ready yet."""
    ready: int = 0
    grew_at_s: float = 0.0
    """When `ready` last grew."""
    waiting: int = 0
    oldest_at_s: float = 0.0
    """When the job came that waits the longest."""
    taken_at_s: float = 0.0
    """When a job was last seen to have left the queue."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Have `wanted` workers."""

    wanted: int
    reason: str
    """A sentence with the figures that led to it."""
    wait_s: float | None
    """What a job that comes now will have to wait, start of workers included; None: not known."""
    memory: PolicyState


@dataclass(frozen=True, slots=True)
class _Need:
    workers: int
    why: str


def decide(now: Observation, limits: Limits, memory: PolicyState | None) -> Decision:
    """How many workers to have. `memory` is the last decision's, None if there was none."""
    past = _recall(now, memory)
    supply = _supply(now, past)
    need = _need(now, limits, past, supply)
    needs = _window(now, limits, past, need)
    wanted, reason = _allowed(now, limits, _slowly(now, limits, past, need, needs))
    memory = replace(
        past,
        wanted=wanted,
        changed_at_s=past.changed_at_s if wanted == past.wanted else now.at_s,
        needs=needs,
        asked=_still_to_come(past.asked, max(now.starting, wanted - now.ready), now.at_s),
    )
    return Decision(wanted, reason, _wait_s(now, _supply(now, memory)), memory)


# --- what is known ---


def _recall(now: Observation, memory: PolicyState | None) -> PolicyState:
    """What is remembered, brought up to this moment."""
    oldest_at_s = now.at_s - now.oldest_s
    there = now.ready + now.starting
    # Who begins takes what is there as what was needed until now.
    past = memory or PolicyState(there, now.at_s, ((now.at_s, there),), now.at_s, now.at_s)
    passed_s = now.at_s - past.at_s
    # A clock that was set back, or an outage of ours, is neither calm nor an eternity.
    shift_s = passed_s - min(max(passed_s, 0.0), _GAP_S)
    taken = (
        memory is None
        or shift_s != 0
        or now.waiting < past.waiting
        or oldest_at_s > past.oldest_at_s + _JITTER_S
    )
    past = _shifted(past, shift_s) if shift_s else past
    return replace(
        past,
        busy_at_s=now.at_s if now.waiting or now.running else past.busy_at_s,
        at_s=now.at_s,
        asked=_still_to_come(past.asked, now.starting, now.at_s),
        ready=now.ready,
        grew_at_s=now.at_s if memory is None or now.ready > past.ready else past.grew_at_s,
        waiting=now.waiting,
        oldest_at_s=oldest_at_s,
        taken_at_s=now.at_s if taken or not now.waiting else past.taken_at_s,
    )


def _shifted(past: PolicyState, by_s: float) -> PolicyState:
    return replace(
        past,
        changed_at_s=past.changed_at_s + by_s,
        needs=tuple((at_s + by_s, workers) for at_s, workers in past.needs),
        busy_at_s=past.busy_at_s + by_s,
        asked=tuple((at_s + by_s, workers) for at_s, workers in past.asked),
        grew_at_s=past.grew_at_s + by_s,
    )


def _still_to_come(
    asked: tuple[tuple[float, int], ...], starting: int, at_s: float
) -> tuple[tuple[float, int], ...]:
    """Those that start, with when they were asked for: the oldest of `asked` have come already."""
    kept: list[tuple[float, int]] = []
    for asked_at_s, workers in reversed(asked):
        if starting > 0:
            kept.append((asked_at_s, min(workers, starting)))
            starting -= workers
    kept.reverse()
    return (*kept, (at_s, starting)) if starting > 0 else tuple(kept)


def _supply(now: Observation, past: PolicyState) -> WorkerSupply:
    """Who takes jobs, and who will."""
    start_s = _START_S if now.start_s is None else now.start_s
    loading = tuple(
        (max(start_s - (now.at_s - asked_at_s), _LATE * start_s), workers)
        for asked_at_s, workers in past.asked
    )
    slots = now.slots or _SLOTS
    settled = now.oldest_s > _CLAIMED_S and now.at_s - past.grew_at_s > _SETTLED_S
    if settled and now.running >= now.ready > 0:
        # Jobs wait although slots may seem to be free: then memory, not their number, is what
        # bounds a worker, and it runs as many as it can.
        slots = min(slots, math.ceil(now.running / now.ready))
    return WorkerSupply(now.ready, loading, max(1, slots))


def _backlog(now: Observation, supply: WorkerSupply) -> Backlog:
    """What finds no free slot."""
    jobs = max(0, now.waiting - max(0, supply.ready * supply.slots - now.running))
    if now.job_s is None:
        return Backlog(jobs, math.inf)
    ratio = 1.0
    if now.waiting and now.waiting_tokens and now.job_tokens:
        ratio = now.waiting_tokens / now.waiting / now.job_tokens
        ratio = min(max(ratio, 1 / _COST_RATIO), _COST_RATIO)
    return Backlog(jobs, max(now.job_s, _LEAST_JOB_S) * ratio, now.arrivals_per_s / ratio)


# --- what is needed ---


def _need(now: Observation, limits: Limits, past: PolicyState, supply: WorkerSupply) -> _Need:
    """How many workers the load asks for, whatever is allowed."""
    if not now.waiting and not now.running:
        return _Need(0, "nothing waits or runs")
    needs = [_running(now, supply), _steady(now, limits, past, supply)]
    if now.waiting:
        waits = _Need(1, _wait(now.waiting))
        needs = [_drain(now, limits, supply), _still(now, limits, past, supply), *needs, waits]
    return max(needs, key=lambda need: need.workers)  # the first of equals


def _running(now: Observation, supply: WorkerSupply) -> _Need:
    """What runs keeps its slots; what runs on workers that leave leaves with them."""
    running = min(now.running, supply.ready * supply.slots)
    return _Need(
        math.ceil(running / supply.slots), f"{_count(running, 'job')} {_s(running, 'run')}"
    )


def _steady(now: Observation, limits: Limits, past: PolicyState, supply: WorkerSupply) -> _Need:
    """Enough that the load as it comes keeps no more than its share of their slots busy."""
    if now.job_s is None:
        return _Need(0, "")
    busy = now.arrivals_per_s * now.job_s
    load = busy / (supply.slots * limits.utilization)
    up, enough = math.ceil(load / _SLACK), math.ceil(load)
    why = (
        f"{_figure(now.arrivals_per_s)} jobs/s of {_figure(now.job_s)} s each keep "
        f"{_figure(busy)} slots busy, of {supply.slots} that a worker has"
    )
    return _Need(up if up > past.wanted else min(enough, past.wanted), why)


def _drain(now: Observation, limits: Limits, supply: WorkerSupply) -> _Need:
    """Enough that what waits is gone soon after those asked for now have loaded."""
    backlog = _backlog(now, supply)
    if not backlog.jobs:
        return _Need(0, "")
    start_s = _START_S if now.start_s is None else now.start_s
    target_s = max(limits.target_wait_s, _LEAST_TARGET_S)
    more = backlog.more(supply, start_s, target_s)
    if more:
        return _Need(supply.size + more, _wait(now.waiting) + _work(now, supply, backlog))
    clear_s = backlog.clear_s(supply)
    s = "s" if supply.size == 1 else ""
    cleared = math.isfinite(clear_s)
    takes = f"clear{s} the queue in {_figure(clear_s)} s" if cleared else f"take{s} them"
    why = f"{_who(supply)} {takes}; a new one takes {_figure(start_s)} s"
    if not supply.loading:
        return _Need(supply.ready, why)
    # Those that load are needed as far as something is left for them to take.
    without = replace(supply, loading=())
    needed = supply.ready + backlog.more(without, supply.loading[0][0], target_s)
    return _Need(min(needed, supply.size), why)


def _still(now: Observation, limits: Limits, past: PolicyState, supply: WorkerSupply) -> _Need:
    """A slot for each job of a queue that stands still, as behind jobs that run for hours."""
    still_s = now.at_s - past.taken_at_s
    slot_s = (now.job_s or 0.0) / (supply.slots * max(1, supply.ready))
    if not supply.ready or still_s <= max(
        limits.target_wait_s, _LEAST_TARGET_S, _STILL_SLOTS * slot_s
    ):
        return _Need(0, "")
    why = (
        f"{_wait(now.waiting)}, the oldest for {_figure(now.oldest_s)} s, and no slot has "
        f"become free for {_figure(still_s)} s"
    )
    return _Need(supply.ready + math.ceil(now.waiting / supply.slots), why)


def _wait_s(now: Observation, supply: WorkerSupply) -> float | None:
    """What a job waits that comes now: until those before it and itself have a slot."""
    if now.waiting + now.running < supply.ready * supply.slots:
        return 0.0
    if now.start_s is None:
        supply = replace(supply, loading=())
    elif not supply.size:  # it would be what the first worker is started for
        supply = replace(supply, loading=((now.start_s, 1),))
    backlog = _backlog(now, supply)
    wait_s = replace(backlog, jobs=backlog.jobs + 1, arrivals_per_s=0.0).clear_s(supply)
    return wait_s if math.isfinite(wait_s) else None


# --- what is wanted ---


def _window(
    now: Observation, limits: Limits, past: PolicyState, need: _Need
) -> tuple[tuple[float, int], ...]:
    """The needs of the last `down_after_s` with this one, falling: the first is the largest."""
    workers = min(need.workers, limits.max)
    kept = [
        (at_s, needed)
        for at_s, needed in past.needs
        if now.at_s - at_s < limits.down_after_s and needed > workers
    ]
    return (*kept, (now.at_s, workers))


def _slowly(
    now: Observation,
    limits: Limits,
    past: PolicyState,
    need: _Need,
    needs: tuple[tuple[float, int], ...],
) -> _Need:
    """Down to the most that was needed of late, and to none only after a time without work."""
    if need.workers >= past.wanted or past.wanted <= limits.min:
        return need
    held = min(past.wanted, needs[0][1])
    if held == past.wanted:
        since_s = next(at_s for at_s, workers in reversed(needs) if workers >= held)
        for_s = f"{now.at_s - since_s:.0f} of {limits.down_after_s:.0f} s"
        return _Need(held, f"fewer have been enough for {for_s}")
    if held:
        has = "has" if held == 1 else "have"
        for_s = f"{limits.down_after_s:.0f} s"
        return _Need(held, f"{_count(held, 'worker')} {has} been enough for {for_s}")
    if limits.min:
        return need
    idle_s = now.at_s - past.busy_at_s
    if idle_s < limits.idle_s:
        return _Need(1, f"idle for {idle_s:.0f} of {limits.idle_s:.0f} s")
    return _Need(0, f"idle for {idle_s:.0f} s")


def _allowed(now: Observation, limits: Limits, need: _Need) -> tuple[int, str]:
    """What is wanted and why: nobody who loads is stopped, and all within the limits."""
    wanted, why = need.workers, need.why
    if now.starting and now.ready + now.starting > max(wanted, limits.min):
        wanted = now.ready + now.starting
        why = f"{_count(now.starting, 'worker')} {_be(now.starting)} loading, which goes on"
    if wanted > limits.max:
        return limits.max, f"{why}; {limits.max} {_be(limits.max)} the most allowed"
    if wanted < limits.min:
        return limits.min, f"{why}; {limits.min} {_be(limits.min)} the least allowed"
    return wanted, why


# --- words ---


def _wait(jobs: int) -> str:
    return f"{_count(jobs, 'job')} {_s(jobs, 'wait')}"


def _work(now: Observation, supply: WorkerSupply, backlog: Backlog) -> str:
    """What the wait is about, in brackets."""
    if now.slots is None:
        return ", and no worker has run yet"
    if now.job_s is None:
        return ", and none has ended yet"
    workers = max(1, supply.ready)
    seconds = backlog.jobs * backlog.job_s / (workers * supply.slots)
    return f" (about {_figure(seconds)} s of work for {_count(workers, 'worker')})"


def _who(supply: WorkerSupply) -> str:
    at_work = f"the {_one(supply.ready)} at work" if supply.ready else ""
    loading = f"the {_one(supply.size - supply.ready)} being started" if supply.loading else ""
    return " and ".join(filter(None, (at_work, loading)))


def _one(count: int) -> str:
    return "one" if count == 1 else str(count)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _s(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
