"""The job object: a job as the API shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.core.fleet_view import FleetView
from gateway.core.progress import waiting_headers
from shared.job.errors import StreamReset, job_error
from shared.job.job import Attempt, Job
from shared.job.states import JobState
from shared.job.trace_context import trace_id
from shared.store.answers import Body, read_transcript
from shared.store.queue import Queue
from shared.store.views import places, with_errors

_MAX_POSITION_COMMANDS = 10_000
"""Redis commands for the positions in one list. A list that needs more has no positions."""
_TOO_LONG = (
    "The text is too long to be shown here: read it from `result` once the job has ended, or as it "
    "grows from /jobs/{id}/events or, where the request asked for a stream, /jobs/{id}/stream."
)


def summary(job: Job) -> dict[str, Any]:
    """The fields that a list shows. Times are Unix seconds by Redis' clock."""
    return {
        "id": job.id,
        "object": "job",
        "state": job.state,
        "tenant": job.tenant,
        "endpoint": job.endpoint,
        "model": job.model,
        "pool": job.pool,
        "lane": job.lane,
        "stream": job.stream,
        "metadata": job.metadata,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "deadline_at": job.deadline_at,
        "expires_at": job.expires_at,
        "queue_deadline_s": job.queue_deadline_s,
        "run_deadline_s": job.run_deadline_s,
        "retried_from": job.retried_from or None,
        "worker": job.attempts[-1].worker if job.attempts else None,
        "attempts": [attempt_object(attempt) for attempt in job.attempts],
        "usage": job.usage,
        "status_code": job.status or None,
        "error": _error(job),
        "trace_id": trace_id(job.origin.traceparent) or None,
        "request_id": job.origin.request_id or None,
        "links": {
            "self": f"/jobs/{job.id}",
            "events": f"/jobs/{job.id}/events",
            "stream": f"/jobs/{job.id}/stream",
            "result": f"/jobs/{job.id}/result",
            "cancel": f"/jobs/{job.id}/cancel",
        },
    }


async def summaries(queue: Queue, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The summary of each job, with its position if it is queued."""
    fields = [summary(job) for job in await with_errors(queue, jobs)]
    queued = [number for number, job in enumerate(jobs) if job.state is JobState.QUEUED]
    if len(queued) * queue.shards <= _MAX_POSITION_COMMANDS:
        found = await places(queue, [jobs[number] for number in queued])
        for number, place in zip(queued, found, strict=True):
            fields[number]["position"] = place and place.position
    return fields


async def full(queue: Queue, fleet: FleetView, job: Job) -> tuple[Body, dict[str, str]]:
    """All fields, as JSON: position while it is queued, text so far once it was started, result;
    and the headers of the response that tell how long the job may wait.

    The result is put in as the bytes that the worker has stored. `usage` is what the worker counted
    at the end, here as in a list. `usage_so_far` is the sum of the journal, over all attempts: for
    a job that runs, or that was not ended by its worker.
    """
    fields, headers = summary(job), dict[str, str]()
    if job.state is JobState.QUEUED:
        (place,) = await places(queue, [job])
        fields["position"] = place and place.position
        if place is not None:
            wait = fleet.wait_estimate(job.pool, place.position)
            fields["estimated_wait_s"] = None if wait.wait_s is None else round(wait.wait_s, 1)
            if wait.reason:
                fields["wait_reason"] = wait.reason
            headers = waiting_headers(place.position, wait)
    if job.state is not JobState.QUEUED or job.attempts:
        await _add_output(fields, queue, job)
    shown = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if job.result_bytes and job.content_type.startswith("application/json"):
        return Body(shown.removesuffix(b"}") + b',"result":', queue, job, tail=b"}"), headers
    return Body(shown), headers


async def _add_output(fields: dict[str, Any], queue: Queue, job: Job) -> None:
    """Add the text and the usage so far, from the log of a job that was started."""
    fields["text"], fields["choices"] = None, []
    try:
        transcript = await read_transcript(queue, job)
    except StreamReset as lost:
        fields["error"] = fields["error"] or json.loads(lost.to_openai())["error"]
        return
    if transcript is None:
        fields["text_omitted"] = _TOO_LONG
        return
    choices = transcript.choices()
    fields["text"] = choices[0]["text"] if choices else ""
    fields["choices"] = choices
    if fields["usage"] is None and transcript.prompt_tokens:
        fields["usage_so_far"] = transcript.usage()


def attempt_object(attempt: Attempt) -> dict[str, Any]:
    """An attempt."""
    return {
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome,
        "entries": attempt.entries,
    }


def _error(job: Job) -> dict[str, Any] | None:
    """OpenAI's error object: vLLM's own if it refused the request, else Flotilla's."""
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
