"""What a line of a batch has led to, as a line of the output or of the errors."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from shared.api.error_shapes import error_body, error_style
from shared.batches.batch import Usage
from shared.job.errors import FlotillaError

# Clients split a file at these, too, if they use Python's `splitlines`; within JSON texts they may
# be escaped.
_LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\u0085": "\\u0085"}
_ENCODED_ENDS = [(end.encode(), escape.encode()) for end, escape in _LINE_ENDS.items()]


class CutOff(NamedTuple):
    """Why a line has ended without an answer: its batch ended before it."""

    code: str
    message: str


CANCELLED = CutOff("batch_cancelled", "This request was cut off: its batch was cancelled.")
EXPIRED = CutOff(
    "batch_expired",
    "This request could not be executed before the completion window expired.",
)


class LineResult(NamedTuple):
    """A line of the output, or of the errors."""

    number: int
    data: bytes
    """With its newline."""
    is_output: bool
    usage: Usage = Usage()


def answered(number: int, custom_id: str, job_id: str, status: int, body: bytes) -> LineResult:
    """The line for an HTTP answer. One that is no JSON object can't be part of a line."""
    try:
        answer = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        message = "The answer is not a JSON object, so it can't be part of a batch's output."
        return given_up(number, custom_id, job_id, "answer_not_json", message)
    if b"\n" in body or b"\r" in body:
        body = json.dumps(answer, ensure_ascii=False).encode()
    for end, escape in _ENCODED_ENDS:
        if end in body:
            body = body.replace(end, escape)
    head = {"id": _request_id(job_id), "custom_id": custom_id}
    response = f'{{"status_code": {status}, "request_id": "{job_id}", "body": '
    text = json.dumps(head)[:-1] + f', "response": {response}'
    data = b"%b%b}, " % (text.encode(), body) + b'"error": null}\n'
    fine = status < 400
    return LineResult(number, data, fine, _usage(answer) if fine else Usage())


def refused(
    number: int, custom_id: str, job_id: str, endpoint: str, error: FlotillaError
) -> LineResult:
    """The line for a request that the gateway refuses, as it would answer one of its own."""
    body = error_body(error, error_style(endpoint))
    return answered(number, custom_id, job_id, error.status, body)


def given_up(number: int, custom_id: str, job_id: str, code: str, message: str) -> LineResult:
    """The line for a request without an answer."""
    line = {
        "id": _request_id(job_id),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return LineResult(number, json.dumps(line).encode() + b"\n", is_output=False)


def _request_id(job_id: str) -> str:
    return f"batch_req_{job_id.removeprefix('job_')}"


def _usage(answer: dict[str, Any]) -> Usage:
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    output = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
    return Usage(
        _count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        _count(usage.get("prompt_tokens_details"), "cached_tokens")
        or _count(usage.get("input_tokens_details"), "cached_tokens"),
        output,
        _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        or _count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if type(value) is int and value >= 0 else 0
