"""What the autoscaler sees of a pool. Pure: two looks at counters that only grow give rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.fleet.autoscale_policy import Observation, PolicyState
from shared.fleet.registry import WorkerInfo
from shared.protocol.states import WorkerState

WINDOW_S = 30.0
"""What is averaged over time is averaged over about so long."""
TOKENS_PER_BYTE = 0.25
"""Of a request's body, until workers have told_to_drain."""
# Who asked for a worker may have nobody who can give it one: full cluster, no container, no GPU.
_ANNOUNCES_WITHIN_S = 60.0
# A worker that was killed while it loaded looks as if it loaded for an hour.
_LOADS_WITHIN_S = 600.0


class Work(NamedTuple):
    """What workers have done; see the fields of the same names in WorkerInfo."""

    finished: float = 0.0
    job_seconds: float = 0.0
    request_bytes: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def plus(self, other: Work, share: float = 1.0) -> Work:
        """This and a share of the other."""
        return Work(*(mine + share * its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool at one moment, as Redis has it."""

    at_s: float
    """Redis' clock, Unix seconds."""
    waiting: int
    waiting_bytes: float
    """Estimate of the waiting jobs' bodies."""
    oldest_s: float
    running: int
    workers: Sequence[WorkerInfo]


@dataclass(frozen=True, slots=True)
class RateState:
    """What one look leaves for the next; what it knew last where nothing happens."""

    at_s: float
    waiting: int
    running: int
    workers: dict[str, Work]
    """By worker id, since its start."""
    loading: dict[str, float]
    """Workers that load their model, and when they were first seen to."""
    arrivals_per_s: float
    """Smoothed. May be below zero for a moment: counters are announced a little late."""
    recent: Work
    """Of late: only what its parts say of each other means something."""
    slots: int | None
    start_s: float | None


def observe(
    look: PoolSnapshot, before: RateState | None, memory: PolicyState | None
) -> tuple[Observation, RateState]:
    """What the policy is to know, and what the next look needs."""
    rates = _rates(look, before)
    states = [worker.state for worker in look.workers]
    ready = sum(state.serving for state in states)
    loads_within_s = max(_LOADS_WITHIN_S, 3 * (rates.start_s or 0.0))
    announced = sum(look.at_s - since_s < loads_within_s for since_s in rates.loading.values())
    jobs = rates.recent.finished
    seen = Observation(
        at_s=look.at_s,
        waiting=look.waiting,
        waiting_tokens=_waiting_tokens(look, rates.recent),
        oldest_s=look.oldest_s,
        running=look.running,
        arrivals_per_s=max(0.0, rates.arrivals_per_s),
        job_s=rates.recent.job_seconds / jobs if jobs else None,
        job_tokens=(rates.recent.prompt_tokens + rates.recent.completion_tokens) / jobs
        if jobs
        else None,
        slots=rates.slots,
        ready=ready,
        starting=announced + _asked_for(look.at_s, ready + announced, rates.start_s, memory),
        draining=states.count(WorkerState.DRAINING),
        start_s=rates.start_s,
    )
    return seen, rates


def _rates(look: PoolSnapshot, before: RateState | None) -> RateState:
    workers = {worker.id: _work(worker) for worker in look.workers}
    loading = {w.id: look.at_s for w in look.workers if w.state is WorkerState.STARTING}
    last_slots, last_start_s = (before.slots, before.start_s) if before else (None, None)
    if before is None:
        done, arrivals_per_s = _since({}, workers), 0.0
        # All that was ever done has the weight of one job.
        recent = Work().plus(done, 1 / done.finished) if done.finished else Work()
    else:
        passed_s = max(0.0, look.at_s - before.at_s)
        kept = math.exp(-passed_s / WINDOW_S)
        done = _since(before.workers, workers)
        arrived = done.finished + look.waiting - before.waiting + look.running - before.running
        arrivals_per_s = before.arrivals_per_s
        if passed_s:
            arrivals_per_s = kept * arrivals_per_s + (1 - kept) * arrived / passed_s
        # Silence says nothing about how long jobs take, so nothing fades in it.
        recent = done.plus(before.recent, kept) if done.finished else before.recent
        loading = {worker_id: before.loading.get(worker_id, s) for worker_id, s in loading.items()}
    return RateState(
        at_s=look.at_s,
        waiting=look.waiting,
        running=look.running,
        workers=workers,
        loading=loading,
        arrivals_per_s=arrivals_per_s,
        recent=recent,
        slots=max((w.slots for w in look.workers), default=0) or last_slots,
        start_s=_mean(w.start_s for w in look.workers) or last_start_s,
    )


def _work(worker: WorkerInfo) -> Work:
    return Work(
        worker.finished,
        worker.job_seconds,
        worker.request_bytes,
        worker.prompt_tokens,
        worker.completion_tokens,
    )


def _since(before: dict[str, Work], now: dict[str, Work]) -> Work:
    """What was done in between. A worker that is new, or began anew, began with nothing."""
    total = Work()
    for worker_id, work in now.items():
        known = before.get(worker_id, Work())
        total = total.plus(work)
        if known.finished <= work.finished:
            total = total.plus(known, -1.0)
    return total


def _waiting_tokens(look: PoolSnapshot, recent: Work) -> float | None:
    if not look.waiting:
        return 0.0
    if not recent.finished:
        return None
    per_byte = TOKENS_PER_BYTE
    if recent.request_bytes:
        per_byte = recent.prompt_tokens / recent.request_bytes
    completions = recent.completion_tokens / recent.finished
    return look.waiting_bytes * per_byte + look.waiting * completions


def _asked_for(now_s: float, here: int, start_s: float | None, memory: PolicyState | None) -> int:
    """Workers that were asked for not long ago and have not announced themselves."""
    if memory is None:
        return 0
    patience_s = max(_ANNOUNCES_WITHIN_S, 2 * (start_s or 0.0))
    late = now_s - memory.changed_at_s > patience_s
    return 0 if late else max(0, memory.wanted - here)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
