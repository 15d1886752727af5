"""What has happened to a job, in events and spans, and why it is where it is."""

from __future__ import annotations

from typing import Any

from gateway.apis.jobs.timeline import spans, timeline
from gateway.apis.jobs.why import PoolSituation, Waiting, explain
from shared.job.job import Job
from shared.job.states import JobState
from tests.unit.gateway.jobs import NOW, attempt, job

POOL = PoolSituation(running=4, slots=4, workers=2)


def shown(found: Job) -> list[tuple[str, float, float | None, int, str]]:
    """The spans with times after NOW."""
    return [
        (s.name, s.start - NOW, None if s.end is None else s.end - NOW, s.attempt, s.worker)
        for s in spans(found)
    ]


def events(found: Job) -> list[str]:
    shown = timeline(found).events
    assert all(each.text for each in shown)
    return [each.event for each in shown]


def why(found: Job, pool: PoolSituation = POOL, *waiting: Any, message: str = "") -> str:
    explanation = explain(found, pool, Waiting(*waiting), message, NOW)
    assert all(fact.name and fact.text for fact in explanation.facts)
    return explanation.sentence


def test_a_job_that_a_second_worker_continued() -> None:
    moved = job(
        state=JobState.IN_PROGRESS,
        attempts=(
            attempt("w-1", -10, -6, "worker_lost", 7),
            attempt("w-2", -5, None, "in_progress"),
        ),
    )
    assert shown(moved) == [
        ("run", -10, -6, 1, "w-1"),
        ("pause", -6, -5, 2, ""),
        ("run", -5, None, 2, "w-2"),
    ]
    assert events(moved)[1:] == ["claimed", "pause", "resumed"]
    assert "w-2" in why(moved)


def test_a_job_that_was_handed_over_waits_again() -> None:
    waits = job(attempts=(attempt("w-1", -9, -6, "handed_over", 2),))
    assert shown(waits) == [
        ("queue", -10, -9, 1, ""),
        ("run", -9, -6, 1, "w-1"),
        ("pause", -6, None, 2, ""),
    ]
    assert "hand_over" in events(waits)


def test_a_job_that_expired_in_the_queue_or_failed_after_a_loss() -> None:
    expired = job(state=JobState.EXPIRED, finished_at=NOW - 4, error_code="queue_deadline_exceeded")
    assert shown(expired) == [("queue", -10, -4, 1, "")]
    assert "no worker was free" in why(expired)
    failed = job(
        state=JobState.FAILED,
        finished_at=NOW - 4,
        error_code="too_many_attempts",
        attempts=(attempt("w-1", -9, -4, "worker_lost", 0),),
    )
    assert shown(failed)[-1][0] in ("run", "pause")
    assert "every worker" in why(failed)
    refused = job(
        state=JobState.FAILED, finished_at=NOW, error_code="rejected", status=400, attempts=()
    )
    assert "The answer says: bad field" in why(refused, message="bad field")


def test_why_a_job_waits() -> None:
    for fact in ("4 slots", "2 jobs", "4.2 s"):
        assert fact in why(job(), POOL, 3, 1, 4.2)
    assert "5 tenants" in why(job(), POOL, 3, 5, 4.2)
    paused = PoolSituation(0, 4, 2, paused=True)
    assert "an operator has paused the pool qwen" in why(job(), paused, 1)
    none = PoolSituation(0, 0, 0, wait_reason="no worker runs")
    assert "no worker runs" in why(job(), none, 1)
    free = PoolSituation(1, 4, 2)
    assert "1 job is before it in the lane default" in why(job(), free, 2)
    assert "a worker takes it now" in why(job(), free, 1)
