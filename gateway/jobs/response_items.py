"""The items of responses and conversations: what is said, called and returned. Pure.

An item is a JSON object of OpenAI's Responses API. Where a client sends a text, it is one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from shared.api.errors import BadRequest, NotFound

Item = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_REFERENCE = "item_reference"


def as_items(given: Any) -> list[Item]:
    """The items of an `input`, which is a text or a list. Raises BadRequest."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise BadRequest("`input` must be a text or a list of items.", "input")
    return given


def without_empty(items: Iterable[Item]) -> list[Item]:
    """The items without answers that have no content: vLLM can't render these."""
    return [
        item
        for item in items
        if not (item.get("content") == [] and item.get("role") == "assistant")
    ]


def sent_again(output: Iterable[Item]) -> list[Item]:
    """The items of an answer as input of the next request.

    vLLM refuses null in some fields that it has set to null itself.
    """
    found = []
    for item in without_empty(output):
        again = {name: value for name, value in item.items() if value is not None}
        if isinstance(again.get("content"), list):
            again["content"] = [_without_logprobs(part) for part in again["content"]]
        found.append(again)
    return found


def with_references(items: Sequence[Item], history: Sequence[Item]) -> list[Item]:
    """The items, with those of `history` that they refer to in place of each reference.

    Raises BadRequest.
    """
    if not any(item.get("type") == _REFERENCE for item in items):
        return list(items)
    known = {item["id"]: item for item in history if isinstance(item.get("id"), str)}
    found = []
    for item in items:
        if item.get("type") != _REFERENCE:
            found.append(item)
            continue
        item_id = item.get("id")
        if not isinstance(item_id, str):
            raise BadRequest("The `id` of an item_reference must be a text.", "input")
        if item_id not in known:
            raise BadRequest(f"Item with id {item_id[:64]!r} not found.", "input")
        found.append(known[item_id])
    return found


def shown(items: Sequence[Item], owner: str) -> list[Item]:
    """The items as lists show them: each with an id, which depends on `owner` and its place."""
    return [_shown(item, owner, number) for number, item in enumerate(items)]


def page(items: Sequence[Item], *, after: str, limit: int, descending: bool) -> dict[str, Any]:
    """A page of shown items, as OpenAI's lists are. Raises NotFound if `after` is not among them.

    `after`: the id of the last item of the page before; empty: none.
    """
    ordered = list(reversed(items)) if descending else list(items)
    if after:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise NotFound(f"Item with id {after[:64]!r} not found.")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > limit,
    }


def _without_logprobs(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {name: value for name, value in part.items() if name != "logprobs" and value is not None}


def _shown(item: Item, owner: str, number: int) -> Item:
    kind = str(item.get("type") or "message")
    fields = {"id": _item_id(kind, owner, number), **item, "type": kind}
    if kind == "message":
        fields.setdefault("status", "completed")
        content = item.get("content")
        if isinstance(content, str):
            fields["content"] = [_part(str(item.get("role")), content)]
    return fields


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _item_id(kind: str, owner: str, number: int) -> str:
    digest = sha256(f"{owner} {number}".encode()).hexdigest()[:32]
    return f"{_PREFIXES.get(kind, 'item')}_{digest}"
