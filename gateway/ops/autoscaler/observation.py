"""Turns snapshots of a pool into observations. Pure: two readings of a counter give a rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.fleet.autoscale_types import Observation, PolicyState
from shared.fleet.registry import WorkerInfo
from shared.job.states import WorkerState

WINDOW_S = 30.0
"""Averages over time are taken over about this long."""
TOKENS_PER_BYTE = 0.25
"""Tokens per byte of a request's body, until workers have announced their own figures."""
# A requested worker may never come: full cluster, no container, no GPU.
_ANNOUNCES_WITHIN_S = 60.0
# A worker that was killed while it loaded must not count as loading for an hour.
_LOADS_WITHIN_S = 600.0


class Work(NamedTuple):
    """The work of workers in total; see the fields of the same names in WorkerInfo."""

    finished: float = 0.0
    job_seconds: float = 0.0
    request_bytes: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def plus(self, other: Work, share: float = 1.0) -> Work:
        """The sum of this and a share of the other."""
        return Work(*(mine + share * its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool at one moment, as read from Redis."""

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
    """What is kept of one snapshot until the next, so that rates can be computed."""

    at_s: float
    waiting: int
    running: int
    workers: dict[str, Work]
    """By worker id, since its start."""
    loading: dict[str, float]
    """Worker id -> when it was first seen loading its model."""
    arrivals_per_s: float
    """Smoothed. Below zero for a moment when counters are announced a little late."""
    recent: Work
    """Decayed sums, of which only the ratios are used."""
    slots: int | None
    start_s: float | None


def observe(
    snapshot: PoolSnapshot, before: RateState | None, state: PolicyState | None
) -> tuple[Observation, RateState]:
    """The policy's observation, and the state that the next call needs as `before`."""
    rates = _rates(snapshot, before)
    states = [worker.state for worker in snapshot.workers]
    # A paused worker is there: starting another one, which would be paused too, does not help.
    ready = sum(state.serving or state is WorkerState.PAUSED for state in states)
    loads_within_s = max(_LOADS_WITHIN_S, 3 * (rates.start_s or 0.0))
    announced = sum(snapshot.at_s - since_s < loads_within_s for since_s in rates.loading.values())
    jobs = rates.recent.finished
    seen = Observation(
        at_s=snapshot.at_s,
        waiting=snapshot.waiting,
        waiting_tokens=_waiting_tokens(snapshot, rates.recent),
        oldest_s=snapshot.oldest_s,
        running=snapshot.running,
        arrivals_per_s=max(0.0, rates.arrivals_per_s),
        job_s=rates.recent.job_seconds / jobs if jobs else None,
        job_tokens=(rates.recent.prompt_tokens + rates.recent.completion_tokens) / jobs
        if jobs
        else None,
        slots=rates.slots,
        ready=ready,
        starting=announced + _requested(snapshot.at_s, ready + announced, rates.start_s, state),
        draining=states.count(WorkerState.DRAINING),
        start_s=rates.start_s,
    )
    return seen, rates


def _rates(snapshot: PoolSnapshot, before: RateState | None) -> RateState:
    workers = {worker.id: _work(worker) for worker in snapshot.workers}
    loading = {w.id: snapshot.at_s for w in snapshot.workers if w.state is WorkerState.STARTING}
    last_slots, last_start_s = (before.slots, before.start_s) if before else (None, None)
    if before is None:
        done, arrivals_per_s = _since({}, workers), 0.0
        # All earlier work together gets the weight of one job.
        recent = Work().plus(done, 1 / done.finished) if done.finished else Work()
    else:
        passed_s = max(0.0, snapshot.at_s - before.at_s)
        kept = math.exp(-passed_s / WINDOW_S)
        done = _since(before.workers, workers)
        arrived = (
            done.finished + snapshot.waiting - before.waiting + snapshot.running - before.running
        )
        arrivals_per_s = before.arrivals_per_s
        if passed_s:
            arrivals_per_s = kept * arrivals_per_s + (1 - kept) * arrived / passed_s
        # While no job ends there is no new duration, so the sums do not decay.
        recent = done.plus(before.recent, kept) if done.finished else before.recent
        loading = {worker_id: before.loading.get(worker_id, s) for worker_id, s in loading.items()}
    return RateState(
        at_s=snapshot.at_s,
        waiting=snapshot.waiting,
        running=snapshot.running,
        workers=workers,
        loading=loading,
        arrivals_per_s=arrivals_per_s,
        recent=recent,
        slots=max((w.slots for w in snapshot.workers), default=0) or last_slots,
        start_s=_mean(w.start_s for w in snapshot.workers) or last_start_s,
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
    """The work done in between. Counters of a new or restarted worker began at 0."""
    total = Work()
    for worker_id, work in now.items():
        known = before.get(worker_id, Work())
        total = total.plus(work)
        if known.finished <= work.finished:
            total = total.plus(known, -1.0)
    return total


def _waiting_tokens(snapshot: PoolSnapshot, recent: Work) -> float | None:
    if not snapshot.waiting:
        return 0.0
    if not recent.finished:
        return None
    per_byte = TOKENS_PER_BYTE
    if recent.request_bytes:
        per_byte = recent.prompt_tokens / recent.request_bytes
    completions = recent.completion_tokens / recent.finished
    return snapshot.waiting_bytes * per_byte + snapshot.waiting * completions


def _requested(now_s: float, here: int, start_s: float | None, state: PolicyState | None) -> int:
    """Workers that were requested recently and have not announced themselves."""
    if state is None:
        return 0
    patience_s = max(_ANNOUNCES_WITHIN_S, 2 * (start_s or 0.0))
    late = now_s - state.changed_at_s > patience_s
    return 0 if late else max(0, state.wanted - here)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
