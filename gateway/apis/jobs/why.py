"""Why a job waits, why it has ended as it has, or which worker runs it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel

from shared.job.job import Job
from shared.job.states import JobState
from shared.platform.durations import duration

_CODES = {
    "worker_lost": "its worker was lost after the answer had begun, and no other could continue it",
    "context_changed": "its worker was lost after the answer had begun, and on the next one its "
    "prompt, media, adapter or model was another",
    "too_many_attempts": "every worker that tried it was lost",
    "record_damaged": "its record in Redis could not be read",
    "log_lost": "Redis has lost tokens of its answer",
    "rejected": "the engine refused the request",
    "engine_error": "the engine failed while it made the answer",
    "deadline_exceeded": "its deadline passed",
    "queue_deadline_exceeded": "no worker was free before its queue deadline",
    "run_deadline_exceeded": "it was not complete at its run deadline",
    "unattended": "no client followed it any more",
    "cancelled": "a client or an operator cancelled it",
}


@dataclass(frozen=True, slots=True)
class PoolSituation:
    """The state of a waiting job's pool."""

    running: int
    """Sequences in the engines of the pool's workers."""
    slots: int
    workers: int
    """That serve now."""
    paused: bool = False
    wait_reason: str = ""
    """Why no worker is ready, if so."""


class Waiting(NamedTuple):
    """A job's place in its queue, and its estimate; empty if it does not wait (any more)."""

    position: int | None = None
    """In its queue, better lanes included."""
    tenants: int = 0
    """That have jobs waiting in its lane, and are served in turn."""
    wait_s: float | None = None
    """The estimate."""

    @property
    def estimate(self) -> str:
        """The estimate, in words; empty: not known."""
        return "" if self.wait_s is None else duration(self.wait_s)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a job or its pool."""

    name: str
    text: str


class Why(BaseModel):
    """A sentence, and the facts behind it."""

    object: Literal["why"] = "why"
    job: str
    state: JobState
    sentence: str
    facts: list[Fact]


def explain(job: Job, pool: PoolSituation, waiting: Waiting, message: str, now_s: float) -> Why:
    """The explanation for a job at the time `now_s`, Unix seconds by Redis' clock.

    `message`: of the error it was answered with, if it was.
    """
    if job.state is JobState.QUEUED:
        sentence = _why_it_waits(job, pool, waiting, now_s)
    elif job.state is JobState.IN_PROGRESS:
        sentence = _how_it_runs(job, now_s)
    else:
        sentence = _how_it_ended(job, message)
    facts = [Fact(*each) for each in _facts(job, pool, waiting, message, now_s)]
    return Why(job=job.id, state=job.state, sentence=sentence, facts=facts)


def _why_it_waits(job: Job, pool: PoolSituation, waiting: Waiting, now_s: float) -> str:
    name = job.pool
    waited = f"It has waited {duration(now_s - job.created_at)}"
    if pool.paused:
        return f"{waited} because an operator has paused the pool {name}; resume the pool."
    if pool.wait_reason:
        return f"{waited} because in the pool {name} {pool.wait_reason}."
    ahead = max(0, (waiting.position or 1) - 1)
    estimate = f" It should start in about {waiting.estimate}." if waiting.estimate else ""
    if waiting.tenants > 1:
        estimate = f" {waiting.tenants} tenants take turns.{estimate}"
    if pool.slots and pool.running >= pool.slots:
        full = f"all {pool.slots} slots of the pool {name} are taken"
        return f"{waited} because {full}{' and ' + _are(ahead) if ahead else ''}.{estimate}"
    if ahead:
        return f"{waited} because {_are(ahead)} in the lane {job.lane} or a better one.{estimate}"
    return f"{waited}; the pool {name} has free slots, so a worker takes it now.{estimate}"


def _are(ahead: int) -> str:
    return f"{_jobs(ahead)} {'is' if ahead == 1 else 'are'} before it"


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _how_it_runs(job: Job, now_s: float) -> str:
    if not job.attempts:
        return "A worker runs it."
    last = job.attempts[-1]
    again = f" It is attempt {len(job.attempts)}." if len(job.attempts) > 1 else ""
    ran = duration(now_s - last.started_at)
    return f"It does not wait: {last.worker} has run it for {ran}.{again}"


def _how_it_ended(job: Job, message: str) -> str:
    took = duration((job.finished_at or job.created_at) - job.created_at)
    if job.state is JobState.COMPLETED:
        return f"It completed {took} after it was submitted."
    why = _CODES.get(job.error_code, f"of the error {job.error_code!r}")
    says = f" The answer says: {message[:500]}" if message and job.status else ""
    return f"It is {job.state} because {why}, {took} after it was submitted.{says}"


def _facts(
    job: Job, pool: PoolSituation, waiting: Waiting, message: str, now_s: float
) -> Iterator[tuple[str, str]]:
    yield "state", job.state
    yield "pool", f"{job.pool}, lane {job.lane}, model {job.model}"
    if job.state is JobState.QUEUED:
        yield "waited", duration(now_s - job.created_at)
        if waiting.position is not None:
            yield "position", f"{waiting.position} in its queue, better lanes included"
        if waiting.tenants > 1:
            yield "turns", f"{waiting.tenants} tenants wait in its lane, and are served in turn"
        yield "estimated wait", waiting.estimate or "not known"
        slots = f"{pool.running} of {pool.slots} slots busy on {pool.workers} workers"
        yield "pool now", f"{slots}, paused by an operator" if pool.paused else slots
        if pool.wait_reason:
            yield "workers", pool.wait_reason
    for number, attempt in enumerate(job.attempts, 1):
        ended = attempt.ended_at or now_s
        ran = duration(ended - attempt.started_at)
        yield f"attempt {number}", f"{attempt.worker}, {ran}, {attempt.outcome}"
    if job.deadline_at is not None and not job.state.terminal:
        left = job.deadline_at - now_s
        yield "deadline", f"in {duration(left)}" if left > 0 else "has passed"
    if job.error_code:
        yield "error", job.error_code + (f": {message[:500]}" if message else "")
    if job.retried_from:
        yield "repeats", job.retried_from
