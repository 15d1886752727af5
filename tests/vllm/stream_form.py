"""A streamed answer in a form in which two of the same request are equal.

Without ids and times, and without the places where one chunk ends and the next begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ID = re.compile(r"\b(chatcmpl-tool|chatcmpl|cmpl|call|msg|toolu|resp|job|trsc|transl)[-_][\w-]+")
_TIMES = {"created", "created_at", "completed_at"}
_GROWS = {
    "content", "reasoning", "text", "arguments", "token_ids", "tokens", "token_logprobs",
    "top_logprobs", "text_offset", "partial_json", "thinking",
}  # fmt: skip


def stream_form(text: str) -> dict[str, Any]:
    """Of each choice or block: its different events in order, and all that has grown in them."""
    parts: dict[str, Any] = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        data = "".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        if not lines:
            continue
        if not data.startswith("{"):
            part = parts.setdefault("other", {"events": [], "grown": {}})
            part["events"].append("\n".join(lines))
            continue
        event = _without_ids(json.loads(data))
        part = parts.setdefault(_part(event), {"events": [], "grown": {}})
        for path, value in _cut_out(event).items():
            part["grown"][path] = part["grown"][path] + value if path in part["grown"] else value
        if event not in part["events"] and not _only_grows(event):
            part["events"].append(event)
    return parts


def _without_ids(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: 0 if name in _TIMES and isinstance(inner, int | float) else _without_ids(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    return _ID.sub("ID", value) if isinstance(value, str) else value


def _part(event: Mapping[str, Any]) -> str:
    if choices := event.get("choices"):
        return f"choice {choices[0].get('index')}"
    return f"block {event['index']}" if "index" in event else "whole"


def _only_grows(event: Mapping[str, Any]) -> bool:
    """Whether a chunk has nothing but text; the last text may come with the end, or before it."""
    choices = event.get("choices") or ()
    return bool(choices) and all(
        choice.get("finish_reason") is None and not choice.get("delta") for choice in choices
    )


def _cut_out(value: Any, path: str = "") -> dict[str, Any]:
    """Take what grows out of an event; returns it by its path."""
    grown: dict[str, Any] = {}
    for name, inner in list(enumerate(value) if isinstance(value, list) else value.items()):
        here = f"{path}.{name}"
        if name in _GROWS and isinstance(inner, str | list):
            if inner:
                grown[here] = inner
            del value[name]
        elif name == "usage" and isinstance(inner, dict) and value.get("choices"):
            del value[name]  # of a chunk: counts the tokens so far
        elif isinstance(inner, dict | list):
            grown |= _cut_out(inner, here)
            if name == "logprobs" and not inner:
                value[name] = None
    return grown
