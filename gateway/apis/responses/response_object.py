"""The response object of a job: OpenAI's, in each state of the job."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from gateway.apis.responses.stored_response import StoredResponse
from gateway.core.response_errors import error_object
from shared.job.errors import job_error
from shared.job.job import Job
from shared.job.responses import unfinished
from shared.job.states import JobState
from shared.store.answers import Body, final_response, read_transcript
from shared.store.queue import Queue

_STATUS = {
    JobState.QUEUED: "queued",
    JobState.IN_PROGRESS: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
    JobState.CANCELLED: "cancelled",
}


async def response_object(queue: Queue, stored: StoredResponse) -> Body:
    """The response now, as JSON. Raises StreamReset if a part of it is lost, and StoreError."""
    final = await final_response(queue, stored.job)
    if final is not None:
        return final
    job = stored.job
    fields = unfinished(job.id, stored.body, _STATUS[job.state])
    fields |= {"model": job.model, "created_at": fields["created_at"] or int(job.created_at)}
    if job.state is JobState.CANCELLED and job.attempts:
        fields["output"] = await _output_so_far(queue, stored)
    elif fields["status"] == "failed":
        fields["error"] = _error(job)
    return Body(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())


async def _output_so_far(queue: Queue, stored: StoredResponse) -> list[dict[str, Any]]:
    """The text of a cancelled response, as an incomplete message; none if its log is too long."""
    transcript = await read_transcript(queue, stored.job)
    choices = transcript.choices() if transcript else []
    text = choices[0]["text"] if choices else ""
    if not text:
        return []
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    return [
        {
            "id": f"msg_{stored.id.removeprefix('resp_')}",
            "type": "message",
            "role": "assistant",
            "status": "incomplete",
            "content": [part],
        }
    ]


def _error(job: Job) -> dict[str, Any]:
    """OpenAI's error of a response, from vLLM's refusal or from the end of the job."""
    failure = job_error(job.error_code, job.id)
    error, status = json.loads(failure.to_openai())["error"], failure.status
    if job.result:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            error, status = dict(json.loads(job.result)["error"]), job.status
    return error_object(error, status)
