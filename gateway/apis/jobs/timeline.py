"""A job's timeline: what has happened to it, and when, as events and as spans. Pure.

Spans are `queue` (waits for a worker), `pause` (waits again, after an attempt that was taken back),
`prefill` and `decode` (an attempt up to its first output, and behind it), or `run` (an attempt
whose first output's time is not known: it was taken back, it goes on, or its answer was one part).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from shared.job.job import Attempt, Job
from shared.job.states import JobState
from shared.platform.durations import duration

AT_ONCE_S = 0.05
"""A job that waited no longer than this found a free slot."""

_TAKEN_BACK = {
    "worker_lost": "{worker} was lost",
    "engine_died": "The engine of {worker} ended",
    "run_failed": "{worker} failed while it ran the job",
    "not_received": "{worker} did not receive the job",
    "handed_back": "{worker} handed the job back: a tenant far behind, or a better lane, waited",
    "handed_over": "{worker} drained and handed the job over",
    "drained": "{worker} drained and gave the job back",
    "asleep": "{worker} gave the job back before its engine slept",
    "id_taken": "{worker} ended because another worker has its id",
}
_HANDED_OVER = frozenset({"handed_back", "handed_over", "drained", "asleep"})


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which the job waited or ran; `end` is None while it goes on."""

    name: str
    start: float
    end: float | None
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to the job."""

    at: float
    event: str
    worker: str
    text: str


class Timeline(BaseModel):
    """A job's events and spans. Times are Unix seconds by Redis' clock."""

    object: Literal["timeline"] = "timeline"
    job: str
    state: JobState
    events: list[Event]
    spans: list[Span]


def timeline(job: Job) -> Timeline:
    """The timeline of a job."""
    events = sorted(_events(job), key=lambda event: event.at)
    return Timeline(job=job.id, state=job.state, events=events, spans=spans(job))


def spans(job: Job) -> list[Span]:
    """The spans of a job from its submission on, in order."""
    found: list[Span] = []
    waits_since, name = job.created_at, "queue"
    for number, attempt in enumerate(job.attempts, 1):
        if attempt.started_at > waits_since:
            found.append(Span(name, waits_since, attempt.started_at, number, ""))
        found += _attempt_spans(job, number, attempt)
        waits_since, name = attempt.ended_at or attempt.started_at, "pause"
    waits_still = job.state is JobState.QUEUED
    if waits_still or (not job.attempts and job.finished_at is not None):
        end = None if waits_still else job.finished_at
        found.append(Span(name, waits_since, end, len(job.attempts) + 1, ""))
    elif job.finished_at is not None and _ended_while_it_waited(job):
        found.append(Span(name, waits_since, job.finished_at, len(job.attempts) + 1, ""))
    return found


def first_output_at(job: Job) -> float | None:
    """When the last attempt made its first output; None: not known."""
    if job.first_output_s is None or not job.attempts:
        return None
    return job.attempts[-1].started_at + job.first_output_s


def _attempt_spans(job: Job, number: int, attempt: Attempt) -> list[Span]:
    first_at = first_output_at(job) if number == len(job.attempts) else None
    start, end, worker = attempt.started_at, attempt.ended_at, attempt.worker
    if first_at is None or end is None or first_at > end:
        return [Span("run", start, end, number, worker)]
    return [
        Span("prefill", start, first_at, number, worker),
        Span("decode", first_at, end, number, worker),
    ]


def _ended_while_it_waited(job: Job) -> bool:
    """Whether no worker had the job when it ended, although one had it before."""
    return bool(job.attempts) and job.attempts[-1].outcome not in set(JobState)


def _events(job: Job) -> Iterator[Event]:
    pool = job.pool
    again = f" It repeats {job.retried_from}." if job.retried_from else ""
    yield Event(
        job.created_at,
        "submitted",
        "",
        f"Submitted by {job.tenant} to the lane {job.lane} of the pool {pool}.{again}",
    )
    waited_since, output = job.created_at, 0
    for number, attempt in enumerate(job.attempts, 1):
        waited_s = max(0.0, attempt.started_at - waited_since)
        if number == 1 and waited_s > AT_ONCE_S:
            yield Event(job.created_at, "queued", "", "No worker had a free slot: it waited.")
        yield _start(number, attempt, waited_s, output)
        if number == len(job.attempts) and (first_at := first_output_at(job)) is not None:
            text = f"First output, {duration(first_at - attempt.started_at)} after the claim."
            yield Event(first_at, "first_token", attempt.worker, text)
        if attempt.outcome not in set(JobState) and attempt.ended_at is not None:
            output += attempt.entries or 0
            yield _taken_back(attempt)
            waited_since = attempt.ended_at
    if not job.attempts and job.state is JobState.QUEUED:
        yield Event(job.created_at, "queued", "", "It waits for a free slot.")
    if job.finished_at is not None:
        worker = "" if _ended_while_it_waited(job) or not job.attempts else job.attempts[-1].worker
        yield Event(job.finished_at, job.state, worker, _end(job))


def _start(number: int, attempt: Attempt, waited_s: float, output: int) -> Event:
    if number == 1:
        how = "at once" if waited_s <= AT_ONCE_S else f"after {duration(waited_s)} in the queue"
        text = f"{attempt.worker} claimed it {how}."
        return Event(attempt.started_at, "claimed", attempt.worker, text)
    behind = f"continues behind entry {output} of its log" if output else "begins anew"
    text = f"Attempt {number}: {attempt.worker} {behind}, after a pause of {duration(waited_s)}."
    return Event(attempt.started_at, "resumed", attempt.worker, text)


def _taken_back(attempt: Attempt) -> Event:
    why = _TAKEN_BACK.get(attempt.outcome, f"Taken from {{worker}}: {attempt.outcome}")
    event = "hand_over" if attempt.outcome in _HANDED_OVER else "pause"
    kept = f"; {attempt.entries} entries of output are kept" if attempt.entries else ""
    text = f"{why.format(worker=attempt.worker)}{kept}. The job waits for another worker."
    return Event(attempt.ended_at or attempt.started_at, event, attempt.worker, text)


def _end(job: Job) -> str:
    took = duration((job.finished_at or job.created_at) - job.created_at)
    match job.state:
        case JobState.COMPLETED:
            tokens = f", {job.usage['completion_tokens']} tokens" if job.usage else ""
            return f"Completed after {took}{tokens}."
        case JobState.FAILED:
            return f"Failed after {took}: {job.error_code}."
        case JobState.EXPIRED:
            return f"Expired after {took}: {job.error_code or 'its deadline has passed'}."
        case _:
            by = "no client followed it" if job.error_code == "unattended" else "by a client"
            return f"Cancelled after {took}: {by}."
