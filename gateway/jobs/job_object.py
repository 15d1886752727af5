"""The job as the API shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.context import Gateway
from shared.api.errors import StreamReset, job_error
from shared.protocol.job import Job
from shared.protocol.job_log import Entry, Transcript, read_journal, tokens_missing
from shared.protocol.states import JobState
from shared.queue.depths import position, positions
from shared.queue.listing import ERROR_BYTES, with_errors

_POSITION_QUESTIONS = 10_000
"""Most questions to Redis for the positions in one list; with more shards than that it has none."""


def summary(job: Job) -> dict[str, Any]:
    """What a list shows of it. Times are Unix seconds by Redis' clock."""
    attempts = [
        {
            "worker": attempt.worker,
            "started_at": attempt.started_at,
            "ended_at": attempt.ended_at,
            "outcome": attempt.outcome,
        }
        for attempt in job.attempts
    ]
    return {
        "id": job.id,
        "object": "job",
        "state": job.state,
        "endpoint": job.endpoint,
        "model": job.model,
        "lane": job.lane,
        "stream": job.stream,
        "metadata": job.metadata,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "deadline_at": job.deadline_at,
        "expires_at": job.expires_at,
        "attempts": attempts,
        "usage": job.usage,
        "status_code": job.status or None,
        "error": _error(job),
        "links": {
            "self": f"/jobs/{job.id}",
            "events": f"/jobs/{job.id}/events",
            "result": f"/jobs/{job.id}/result",
            "cancel": f"/jobs/{job.id}/cancel",
        },
    }


async def summaries(gateway: Gateway, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What a list shows: of each job its summary, and its position if it waits."""
    shown = [summary(job) for job in await with_errors(gateway.queue, jobs)]
    queued = [number for number, job in enumerate(jobs) if job.state is JobState.QUEUED]
    if len(queued) * gateway.queue.shards <= _POSITION_QUESTIONS:
        places = await positions(gateway.queue, [jobs[number] for number in queued])
        for number, place in zip(queued, places, strict=True):
            shown[number]["position"] = place
    return shown


async def full(gateway: Gateway, job: Job) -> dict[str, Any]:
    """All of it: position while it waits, text so far while it runs, result when it has one.

    `usage` is what the worker counted at the end, here as in a list. A job that runs, or was ended
    by somebody else, has what its journal adds up to in `usage_so_far`.
    """
    shown = summary(job)
    if job.state is JobState.QUEUED:
        place = shown["position"] = await position(gateway.queue, job)
        if place is not None:
            wait_s, waits_for = gateway.fleet.prospect(job.pool, place)
            shown["estimated_wait_s"] = None if wait_s is None else round(wait_s, 1)
            if waits_for:
                shown["waits_for"] = waits_for
    else:
        entries = await gateway.queue.entries(job.id, 0)
        completed = job.state is JobState.COMPLETED
        if tokens_missing(entries) or (completed and not entries):
            lost = StreamReset("The log of this job has lost tokens.")
            shown["error"] = shown["error"] or json.loads(lost.to_openai())["error"]
            shown["text"], shown["choices"] = None, []
        else:
            transcript = transcript_of(entries)
            choices = transcript.choices()
            shown["text"] = choices[0]["text"] if choices else ""
            shown["choices"] = choices
            if shown["usage"] is None and transcript.prompt_tokens:
                shown["usage_so_far"] = transcript.usage()
    if job.result and job.content_type.startswith("application/json"):
        shown["result"] = json.loads(job.result)
    return shown


def transcript_of(entries: Sequence[Entry]) -> Transcript:
    """What a job's log adds up to."""
    transcript = Transcript.empty()
    for entry in entries:
        transcript.add(read_journal(entry.journal, entry.items))
    return transcript


def _error(job: Job) -> dict[str, Any] | None:
    """OpenAI's error object: vLLM's own if it refused the request, else ours."""
    if not job.error_code:
        return None
    if 0 < len(job.result) <= ERROR_BYTES:
        try:
            error: dict[str, Any] = json.loads(job.result)["error"]
        except (ValueError, KeyError, TypeError):
            pass
        else:
            return error
    ours: dict[str, Any] = json.loads(job_error(job.error_code, job.id).to_openai())["error"]
    return ours | {"code": job.error_code}
