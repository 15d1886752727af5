"""The job as the API shows it."""

from __future__ import annotations

import json
from typing import Any

from gateway.context import Gateway
from shared.depths import position
from shared.errors import job_error
from shared.job import Job
from shared.states import JobState
from shared.token_log import Transcript, read_journal


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


async def full(gateway: Gateway, job: Job) -> dict[str, Any]:
    """All of it: position while it waits, text so far while it runs, result when it has one."""
    shown = summary(job)
    if job.state is JobState.QUEUED:
        place = shown["position"] = await position(gateway.queue, job)
        if place is not None:
            wait_s, waits_for = gateway.fleet.prospect(job.pool, place)
            shown["estimated_wait_s"] = None if wait_s is None else round(wait_s, 1)
            if waits_for:
                shown["waits_for"] = waits_for
    else:
        transcript = await read_transcript(gateway, job)
        choices = transcript.choices()
        shown["text"] = choices[0]["text"] if choices else ""
        shown["choices"] = choices
        if shown["usage"] is None and transcript.prompt_tokens:
            shown["usage"] = transcript.usage()
    if job.result and job.content_type.startswith("application/json"):
        shown["result"] = json.loads(job.result)
    return shown


async def read_transcript(gateway: Gateway, job: Job) -> Transcript:
    """What the job's journal adds up to so far."""
    transcript = Transcript.empty()
    for entry in await gateway.queue.entries(job.id, 0):
        transcript.add(read_journal(entry.journal, entry.items))
    return transcript


def _error(job: Job) -> dict[str, Any] | None:
    """OpenAI's error object: vLLM's own if it refused the request, else ours."""
    if not job.error_code:
        return None
    if job.result:
        try:
            error: dict[str, Any] = json.loads(job.result)["error"]
        except (ValueError, KeyError, TypeError):
            pass
        else:
            return error
    ours: dict[str, Any] = json.loads(job_error(job.error_code, job.id).to_openai())["error"]
    return ours | {"code": job.error_code}
