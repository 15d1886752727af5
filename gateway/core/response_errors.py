"""Errors inside the stream of a response (OpenAI's Responses API), as its last events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.http import server_events as sse
from shared.job.job import Job
from shared.job.responses import opening, unfinished


def error_object(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """The error of a failed response, from the error that its job was answered with.

    vLLM's codes are numbers, OpenAI's are words.
    """
    code = error.get("code")
    if not isinstance(code, str) or code == "job_failed":
        code = "invalid_prompt" if 400 <= status < 500 else "server_error"
    return {"code": code, "message": str(error.get("message") or "The request failed.")}


def failed_response(job: Job, body: bytes, error: Mapping[str, Any], number: int) -> bytes:
    """The end of the stream of a response that has failed. `error`: see `error_object`.

    `body`: of its job; `number`: of the next event. A stream without an event begins first, as
    OpenAI's SDK reads nothing before `response.created`.
    """
    created_at = int(job.created_at)
    begin = b"" if number else opening(job.id, body, created_at)
    response = unfinished(job.id, body, "failed")
    response |= {"created_at": response["created_at"] or created_at, "error": error}
    data = {
        "type": "response.failed",
        "sequence_number": number or 1,
        "response": response | {"model": job.model},
    }
    return begin + sse.event("response.failed", data)


def stream_error(error: Mapping[str, Any], number: int) -> bytes:
    """The event with which a gateway ends the stream of a response that may go on.

    OpenAI documents code, message and param beside the type; its SDKs raise what is in `error`.
    """
    shown = {name: error.get(name) for name in ("code", "message", "param")}
    data = {"type": "error", "error": error, "sequence_number": number, **shown}
    return sse.event("error", data)


def number_behind(chunk: bytes) -> int:
    """The number of the event that follows this part of a stream, which ends with an event."""
    _, _, data = (b"\n" + chunk).rstrip(b"\n").rpartition(b"\ndata: ")
    return int(json.loads(data)["sequence_number"]) + 1
