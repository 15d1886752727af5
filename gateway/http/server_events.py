"""Server-sent events: the bytes of the gateway's own events, and the data in those of vLLM."""

from __future__ import annotations

import json
from typing import Any

from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_body
from shared.job.errors import FlotillaError

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold small chunks back
]


def comment(text: str) -> bytes:
    """A line that clients ignore; it keeps proxies from closing a silent connection.

    No empty line follows: clients of some SDKs would take the two for an event without data.
    """
    return f": {text}\n".encode()


def error(failure: FlotillaError, style: ErrorStyle = ErrorStyle.OPENAI) -> bytes:
    """An error inside a stream; the SDK of this style raises it. No `[DONE]` follows."""
    return error_event(error_body(failure, style), style)


def error_event(body: bytes, style: ErrorStyle) -> bytes:
    """The body of an error as an event of a stream. Anthropic's SDK reads named events only."""
    name = b"event: error\n" if style is ErrorStyle.ANTHROPIC else b""
    return name + b"data: " + body + b"\n\n"


def event(name: str, data: Any, event_id: str = "") -> bytes:
    """A named event with JSON data."""
    return raw_event(name, json.dumps(data, ensure_ascii=False).encode(), event_id)


def raw_event(name: str, data: bytes, event_id: str = "") -> bytes:
    """As `event`, of data that is one line of text already."""
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id else "")
    return head.encode() + b"data: " + data + b"\n\n"


def split(chunk: bytes) -> list[bytes]:
    """The data of each event in the chunk of a log entry: events back to back, of one line
    `data: {...}`, perhaps behind `event: <name>`."""
    return [_data(part) for part in chunk.split(b"\n\n") if part]


def _data(event: bytes) -> bytes:
    if event.startswith(b"event: "):
        event = event[event.find(b"\n") + 1 :]
    return event.removeprefix(b"data: ")
