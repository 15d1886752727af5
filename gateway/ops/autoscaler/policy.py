"""How many workers a pool should have, and why. Pure: an observation in, a decision out.

Work is counted in slot-seconds: a job takes one slot of a worker for `job_s`, a worker offers
`slots` slot-seconds a second. Waiting jobs are judged by how many will be left once a worker that
is requested now is ready. Workers that are starting count from the moment they will be ready, so
that the next decision does not request them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gateway.ops.autoscaler import policy_text as text
from gateway.ops.autoscaler.backlog import Backlog, WorkerSupply
from gateway.ops.autoscaler.policy_state import still_starting, updated, window
from shared.fleet.autoscale_types import Decision, Limits, Observation, PolicyState

_SLOTS = 32
"""Of a worker, until one has announced its own. vLLM has up to 256: too few only start more."""
_START_S = 60.0
"""A worker's start, until one has been measured."""
_LATE = 0.1
"""A worker that should be ready by now is expected after this share of the usual time."""
_SLACK = 1.1
"""A worker is added when the load is this much above what the present ones should carry, and
removed when one fewer can carry it; a load in between changes nothing."""
_COST_RATIO = 10.0
"""The waiting jobs' estimated cost changes a job's expected time by at most this factor."""
_LEAST_TARGET_S = 1.0
_LEAST_JOB_S = 0.001
_CLAIMED_S = 2.0
"""A free slot has got a waiting job by then."""
_SETTLED_S = 10.0
"""A worker that has just become ready has filled its slots by then, if jobs wait."""
_STALLED_SLOTS = 3.0
"""The queue is stalled if none was taken while this many slots should have become free."""


@dataclass(frozen=True, slots=True)
class _Need:
    workers: int
    why: str


def decide(now: Observation, limits: Limits, last: PolicyState | None) -> Decision:
    """How many workers to have. `last` is the last decision's state, None if there was none."""
    state = updated(now, last)
    supply = _supply(now, state)
    need = _need(now, limits, state, supply)
    needs = window(now, limits, state, need.workers)
    wanted, reason = _allowed(now, limits, _slowly(now, limits, state, need, needs))
    state = replace(
        state,
        wanted=wanted,
        changed_at_s=state.changed_at_s if wanted == state.wanted else now.at_s,
        needs=needs,
        requested=still_starting(state.requested, max(now.starting, wanted - now.ready), now.at_s),
    )
    return Decision(wanted, reason, _wait_s(now, _supply(now, state)), state)


# --- what there is ---


def _supply(now: Observation, state: PolicyState) -> WorkerSupply:
    """The workers that take jobs now and later."""
    start_s = _START_S if now.start_s is None else now.start_s
    loading = tuple(
        (max(start_s - (now.at_s - requested_at_s), _LATE * start_s), workers)
        for requested_at_s, workers in state.requested
    )
    slots = now.slots or _SLOTS
    settled = now.oldest_s > _CLAIMED_S and now.at_s - state.grew_at_s > _SETTLED_S
    if settled and now.running >= now.ready > 0:
        # Jobs wait although slots seem to be free: then memory is what limits a worker, and it
        # runs as many jobs as it can.
        slots = min(slots, math.ceil(now.running / now.ready))
    return WorkerSupply(now.ready, loading, max(1, slots))


def _backlog(now: Observation, supply: WorkerSupply) -> Backlog:
    """The waiting jobs that find no free slot."""
    jobs = max(0, now.waiting - max(0, supply.ready * supply.slots - now.running))
    if now.job_s is None:
        return Backlog(jobs, math.inf)
    ratio = 1.0
    if now.waiting and now.waiting_tokens and now.job_tokens:
        ratio = now.waiting_tokens / now.waiting / now.job_tokens
        ratio = min(max(ratio, 1 / _COST_RATIO), _COST_RATIO)
    return Backlog(jobs, max(now.job_s, _LEAST_JOB_S) * ratio, now.arrivals_per_s / ratio)


# --- what is needed ---


def _need(now: Observation, limits: Limits, state: PolicyState, supply: WorkerSupply) -> _Need:
    """How many workers the load needs, whatever the limits."""
    if not now.waiting and not now.running:
        return _Need(0, text.IDLE)
    needs = [_running(now, supply), _steady(now, limits, state, supply)]
    if now.waiting:
        one = _Need(1, text.waiting(now.waiting))
        needs = [_drain(now, limits, supply), _stalled(now, limits, state, supply), *needs, one]
    return max(needs, key=lambda need: need.workers)  # the first of equals


def _running(now: Observation, supply: WorkerSupply) -> _Need:
    """Running jobs keep their slots; those of draining workers end with them."""
    running = min(now.running, supply.ready * supply.slots)
    return _Need(math.ceil(running / supply.slots), text.running(running))


def _steady(now: Observation, limits: Limits, state: PolicyState, supply: WorkerSupply) -> _Need:
    """Enough workers that the arriving load keeps at most `utilization` of their slots busy."""
    if now.job_s is None:
        return _Need(0, "")
    busy = now.arrivals_per_s * now.job_s
    load = busy / (supply.slots * limits.utilization)
    up, enough = math.ceil(load / _SLACK), math.ceil(load)
    why = text.load(now.arrivals_per_s, now.job_s, busy, supply.slots)
    return _Need(up if up > state.wanted else min(enough, state.wanted), why)


def _drain(now: Observation, limits: Limits, supply: WorkerSupply) -> _Need:
    """Enough workers to clear the queue soon after those requested now are ready."""
    backlog = _backlog(now, supply)
    if not backlog.jobs:
        return _Need(0, "")
    start_s = _START_S if now.start_s is None else now.start_s
    target_s = max(limits.target_wait_s, _LEAST_TARGET_S)
    more = backlog.more(supply, start_s, target_s)
    if more:
        return _Need(supply.size + more, text.backlog(now, supply, backlog))
    why = text.enough_supply(supply, backlog.clear_s(supply), start_s)
    if not supply.loading:
        return _Need(supply.ready, why)
    # Starting workers are needed as far as jobs are left for them.
    without = replace(supply, loading=())
    needed = supply.ready + backlog.more(without, supply.loading[0][0], target_s)
    return _Need(min(needed, supply.size), why)


def _stalled(now: Observation, limits: Limits, state: PolicyState, supply: WorkerSupply) -> _Need:
    """A slot for each job of a queue that does not move, as behind jobs that run for hours."""
    still_s = now.at_s - state.taken_at_s
    slot_s = (now.job_s or 0.0) / (supply.slots * max(1, supply.ready))
    if not supply.ready or still_s <= max(
        limits.target_wait_s, _LEAST_TARGET_S, _STALLED_SLOTS * slot_s
    ):
        return _Need(0, "")
    return _Need(supply.ready + math.ceil(now.waiting / supply.slots), text.stalled(now, still_s))


def _wait_s(now: Observation, supply: WorkerSupply) -> float | None:
    """What a job submitted now waits: until those before it and itself have a slot."""
    if now.waiting + now.running < supply.ready * supply.slots:
        return 0.0
    if now.start_s is None:
        supply = replace(supply, loading=())
    elif not supply.size:  # the first worker would be started for this job
        supply = replace(supply, loading=((now.start_s, 1),))
    backlog = _backlog(now, supply)
    wait_s = replace(backlog, jobs=backlog.jobs + 1, arrivals_per_s=0.0).clear_s(supply)
    return wait_s if math.isfinite(wait_s) else None


# --- what is wanted ---


def _slowly(
    now: Observation,
    limits: Limits,
    state: PolicyState,
    need: _Need,
    needs: tuple[tuple[float, int], ...],
) -> _Need:
    """Down only to the most that was needed of late, and to none only after a time without work."""
    if need.workers >= state.wanted or state.wanted <= limits.min:
        return need
    held = min(state.wanted, needs[0][1])
    if held == state.wanted:
        since_s = next(at_s for at_s, workers in reversed(needs) if workers >= held)
        return _Need(held, text.fewer_enough(now.at_s - since_s, limits.down_after_s))
    if held:
        return _Need(held, text.enough(held, limits.down_after_s))
    if limits.min:
        return need
    idle_s = now.at_s - state.busy_at_s
    if idle_s < limits.idle_s:
        return _Need(1, text.idle(idle_s, limits.idle_s))
    return _Need(0, text.idle(idle_s))


def _allowed(now: Observation, limits: Limits, need: _Need) -> tuple[int, str]:
    """(workers wanted, reason): no starting worker is stopped, and all within the limits."""
    wanted, why = need.workers, need.why
    if now.starting and now.ready + now.starting > max(wanted, limits.min):
        wanted, why = now.ready + now.starting, text.keeping_starting(now.starting)
    if wanted > limits.max:
        return limits.max, text.at_limit(why, limits.max, "maximum")
    if wanted < limits.min:
        return limits.min, text.at_limit(why, limits.min, "minimum")
    return wanted, why
