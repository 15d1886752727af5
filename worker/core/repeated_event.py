"""What is the same in an event that is made twice, by two workers for one job. Pure.

Events are `data: {...}`, or `event: <name>` with such a line behind it.
"""

from __future__ import annotations

import json
from typing import Any

_DATA = b"data: "
_MESSAGE_EVENTS = ("message_", "content_block_")
"""How the types of Anthropic's events begin."""


def parsed(event: bytes) -> dict[str, Any]:
    """The JSON object of an event; empty if it has none."""
    if event.startswith(b"event: "):
        event = event[event.find(b"\n") + 1 :]
    try:
        value = json.loads(event.removeprefix(_DATA))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def comparable(event: bytes) -> object:
    """An event without what differs by chance.

    That is the ids of tool calls and the signatures of thoughts, which are random, and what is the
    worker's rather than the answer's: its fingerprint, and how much of the prompt it had cached.
    """
    value = parsed(event)
    if not value:
        return event
    if "choices" in value:
        _strip_chunk(value)
    elif str(value.get("type")).startswith(_MESSAGE_EVENTS):
        _strip_message_event(value)
    elif isinstance(response := value.get("response"), dict):
        response.pop("usage", None)
    return value


def _strip_chunk(chunk: dict[str, Any]) -> None:
    """OpenAI's chunks."""
    chunk.pop("system_fingerprint", None)
    if chunk.get("usage"):
        chunk["usage"].pop("prompt_tokens_details", None)
    for choice in chunk["choices"] or ():
        for call in (choice.get("delta") or {}).get("tool_calls") or ():
            if call.get("id"):
                call["id"] = ""


def _strip_message_event(event: dict[str, Any]) -> None:
    """Anthropic's events. Their `input_tokens` are those that were not cached."""
    for holder in (event, event.get("message") or {}):
        holder.pop("usage", None)
    (event.get("content_block") or {}).pop("id", None)
    (event.get("delta") or {}).pop("signature", None)
