"""Answers in a form in which two of the same request are equal: without ids, times and the places
where one chunk of a stream ends and the next begins."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx

HEADERS = ("content-type", "metadata", "allow")
"""Those that matter to a client; the others are about the connection, or the gateway's own."""

_ID = re.compile(
    r"\b(chatcmpl|cmpl|embd|pool|pooling|score|rerank|classify|call|msg|toolu|resp|tokenize|"
    r"chatcmpl-tool|generative-scoring|req|job|trsc|transl)[-_][\w-]*"
)
_TIMES = {"created", "created_at", "completed_at"}
_GROWS = {
    "content", "reasoning", "text", "arguments", "token_ids", "tokens", "token_logprobs",
    "top_logprobs", "text_offset", "partial_json", "thinking", "delta_text",
}  # fmt: skip


def comparable(answer: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body."""
    headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    if "metadata" in headers:
        headers["metadata"] = json.dumps(_without_ids(json.loads(headers["metadata"])))
    return answer.status_code, headers, _body(answer)


def _body(answer: httpx.Response) -> Any:
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    if media_type == "text/event-stream":
        return _stream(answer.text)
    if media_type == "application/json":
        return _without_ids(answer.json())
    return answer.content


def _without_ids(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: 0 if name in _TIMES and isinstance(inner, int | float) else _without_ids(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    return _ID.sub("ID", value) if isinstance(value, str) else value


def _stream(text: str) -> dict[str, Any]:
    """Of each choice or block: its different events in order, and all that has grown in them."""
    parts: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        data = "".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        if not lines:
            continue
        if not data.startswith("{"):
            parts.setdefault("other", ([], {}))[0].append("\n".join(lines))
            continue
        event = _without_ids(json.loads(data))
        shapes, grown = parts.setdefault(_part(event), ([], {}))
        for path, value in _cut_out(event).items():
            grown[path] = grown[path] + value if path in grown else value
        if (shape := json.dumps(event)) not in shapes:
            shapes.append(shape)
    return parts


def _part(event: Mapping[str, Any]) -> str:
    if choices := event.get("choices"):
        return f"choice {choices[0].get('index')}"
    return f"block {event.get('index')}" if "index" in event else "usage"


def _cut_out(value: Any, path: str = "") -> dict[str, Any]:
    """Take what grows out of an event; returns it by its path."""
    grown: dict[str, Any] = {}
    for name, inner in list(enumerate(value) if isinstance(value, list) else value.items()):
        here = f"{path}.{name}"
        if name in _GROWS and isinstance(inner, str | list):
            grown[here] = inner
            value[name] = "..."
        elif name == "usage" and isinstance(inner, dict) and "choices" in value:
            value[name] = "..."  # of a chunk: counts the tokens so far
        elif isinstance(inner, dict | list):
            grown |= _cut_out(inner, here)
    return grown
