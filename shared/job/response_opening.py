"""A response that is not complete, and the first event of its stream.

The gateway sends that event of a response in the background at once, and the worker makes the same
bytes of it, so a client that resumes the stream has the beginning that is in the job's log.
"""

from __future__ import annotations

import json
from typing import Any

from shared.job.response_id import response_id
from shared.job.response_options import ResponseOptions

_ECHOED: dict[str, Any] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that the response repeats, with their defaults."""


def unfinished(job_id: str, body: bytes, status: str) -> dict[str, Any]:
    """The response of a job without an answer yet, or ever. `body`: of the job."""
    options = ResponseOptions.of_body(body)
    request = options.request_fields(body)
    echoed = {
        name: default if request.get(name) is None else request[name]
        for name, default in _ECHOED.items()
    }
    return {
        "id": response_id(job_id),
        "object": "response",
        "created_at": options.created_at,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.get("model") or "",
        "output": [],
        "previous_response_id": None,
        "usage": None,
        **echoed,
        **options.shown(),
    }


def opening(job_id: str, body: bytes, created_at: int = 0) -> bytes:
    """The event `response.created` of a response in the background.

    `created_at`: of one that is not, whose options do not have it.
    """
    response = unfinished(job_id, body, "queued")
    response["created_at"] = response["created_at"] or created_at
    event = {"type": "response.created", "sequence_number": 0, "response": response}
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return b"event: response.created\ndata: %b\n\n" % data
