"""Made-up jobs and timelines, in the shapes of the API."""

from __future__ import annotations

from typing import Any

from tests.page.overviews import AT

WAITING, RUNNING, FAILED = (f"job_000{letter * 24}" for letter in "abc")
_STATES = ("queued", "in_progress", "completed", "failed", "cancelled", "expired")


def job(job_id: str, state: str, **changes: Any) -> dict[str, Any]:
    """One job; those that have started have one attempt."""
    started = None if state == "queued" else AT - 50
    ended = AT - 40 if state not in ("queued", "in_progress") else None
    return {
        "id": job_id,
        "object": "job",
        "state": state,
        "endpoint": "/v1/chat/completions",
        "model": "qwen3-8b",
        "pool": "qwen",
        "tenant": "search",
        "lane": "default",
        "stream": True,
        "metadata": {"purpose": "nightly summaries"},
        "created_at": AT - 60,
        "started_at": started,
        "finished_at": ended,
        "deadline_at": None,
        "expires_at": AT + 86_400 if ended else None,
        "queue_deadline_s": None,
        "run_deadline_s": None,
        "retried_from": None,
        "attempts": [] if started is None else [_attempt(state)],
        "usage": {"prompt_tokens": 12, "completion_tokens": 340, "total_tokens": 352}
        if state == "completed"
        else None,
        "status_code": 200 if state == "completed" else None,
        "error": _error() if state == "failed" else None,
        "position": 8 if state == "queued" else None,
        "text": "" if started is None else "The queue grows quiet.",
        "links": {
            name: f"/jobs/{job_id}{path}"
            for name, path in {
                "self": "",
                "events": "/events",
                "stream": "/stream",
                "result": "/result",
                "cancel": "/cancel",
            }.items()
        },
    } | changes


def _attempt(state: str) -> dict[str, Any]:
    return {
        "worker": "w-2",
        "started_at": AT - 50,
        "ended_at": None if state == "in_progress" else AT - 40,
        "outcome": "lost" if state == "failed" else "",
        "entries": 11,
    }


def _error() -> dict[str, Any]:
    return {
        "message": "The worker of this job was lost, and its answer can't be continued.",
        "type": "server_error",
        "param": None,
        "code": "worker_lost",
    }


def jobs() -> list[dict[str, Any]]:
    """One job of each state, and enough others for a page."""
    named = [job(WAITING, "queued"), job(RUNNING, "in_progress"), job(FAILED, "failed")]
    long = job(f"job_000{'d' * 24}", "failed", model="meta-llama-3.1-405b-instruct-fp8-dynamic-eu")
    others = [job(f"job_001{n:024x}", _STATES[n % len(_STATES)]) for n in range(16)]
    return [*named, long, *others]


def timeline(job_id: str) -> dict[str, Any]:
    """Two attempts with a pause between them."""
    rows: list[tuple[float, str, str, str]] = [
        (-60.0, "submitted", "", "Submitted by tenant search, lane default."),
        (-60.0, "queued", "", "Waited 2.0 s for a free slot in pool qwen."),
        (-58.0, "claimed", "w-3", "Claimed by w-3, attempt 1."),
        (-57.8, "first_token", "w-3", "First token after 0.2 s of prefill."),
        (-55.0, "pause", "w-3", "w-3 was lost after 140 tokens."),
        (-54.6, "resumed", "w-2", "Continued by w-2 at token 141, attempt 2."),
        (-40.0, "completed", "w-2", "Completed with 340 tokens."),
    ]
    spans: list[tuple[str, float, float, int, str]] = [
        ("queue", -60.0, -58.0, 1, ""),
        ("prefill", -58.0, -57.8, 1, "w-3"),
        ("decode", -57.8, -55.0, 1, "w-3"),
        ("pause", -55.0, -54.6, 2, ""),
        ("decode", -54.6, -40.0, 2, "w-2"),
    ]
    return {
        "object": "timeline",
        "job": job_id,
        "events": [
            {"at": AT + at, "event": event, "worker": worker, "text": text}
            for at, event, worker, text in rows
        ],
        "spans": [
            {"name": name, "start": AT + start, "end": AT + end, "attempt": number, "worker": each}
            for name, start, end, number, each in spans
        ],
    }


def why(job_id: str) -> dict[str, Any]:
    """Why the job waits, or failed."""
    sentence = {
        WAITING: "It waits for a free slot: 7 jobs of pool qwen are before it, about 0.3 s.",
        FAILED: "It failed: w-3 was lost and its answer can't be continued.",
    }.get(job_id, "It has ended.")
    facts = [
        {"name": "pool", "text": "4 workers serve pool qwen; 158 of 256 slots are busy."},
        {"name": "lane", "text": "Lane default; 2 jobs of lane priority come before."},
    ]
    return {"object": "why", "sentence": sentence, "facts": facts}


def request(job_id: str) -> dict[str, Any]:
    """The request of a job, to be edited."""
    body = {"model": "qwen3-8b", "messages": [{"role": "user", "content": "Write a haiku."}]}
    return {
        "object": "job.request",
        "job": job_id,
        "endpoint": "/v1/chat/completions",
        "body": body,
    }
