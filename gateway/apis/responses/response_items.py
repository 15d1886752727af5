"""The items of responses and conversations: messages, calls and what they returned. Pure.

An item is a JSON object of OpenAI's Responses API. Where a client sends a text, it is one message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from shared.job.errors import BadRequest, NotFound
from shared.job.responses import StoredItem

Item = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


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


class History(NamedTuple):
    """Items that a response continues, as JSON: they are joined, never parsed."""

    n_items: int
    parts: list[bytes]
    """Each one item or several, with commas between them."""


def is_reference(item: Item) -> bool:
    """Whether it refers to an item of the history."""
    return item.get("type") == "item_reference"


def references_in(items: Iterable[Item]) -> frozenset[str]:
    """The ids that the references among these items name. Raises BadRequest."""
    ids = [item.get("id") for item in items if is_reference(item)]
    found = frozenset(item_id for item_id in ids if isinstance(item_id, str))
    if not all(isinstance(item_id, str) for item_id in ids):
        raise BadRequest("The `id` of an item_reference must be a text.", "input")
    return found


def found_reference(item: Item, known: Mapping[str, bytes]) -> bytes:
    """The item that a reference names. Raises BadRequest."""
    if item["id"] not in known:
        raise no_such_item(item["id"])
    return known[item["id"]]


def no_such_item(item_id: str) -> BadRequest:
    """For a reference."""
    return BadRequest(f"Item with id {item_id[:64]!r} not found.", "input")


class _Head(msgspec.Struct):
    """The fields that are read of an item that is not parsed."""

    id: Any = None
    type: Any = None


_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_head = msgspec.json.Decoder(_Head).decode


def split_input(text: bytes) -> list[bytes]:
    """The items of a stored input, each as JSON. Raises ValueError (msgspec's) for other texts."""
    if text.startswith(b'"'):
        return [b'{"type":"message","role":"user","content":%b}' % text]
    return [bytes(raw) for raw in _decode_items(text)] if text else []


def join_input(text: bytes, n_items: int) -> History:
    """A stored input as history. `n_items`: how many there are."""
    if text.startswith(b"["):
        inside = text[1:-1].strip()
        return History(n_items, [inside] if inside else [])
    items = split_input(text)
    return History(len(items), items)


def find_items(history: History, wanted: Collection[str], owner: str) -> dict[str, bytes]:
    """The items of a history with the ids in `wanted`: id -> JSON. `owner`: as for `shown`."""
    items = split_input(b"[%b]" % b",".join(history.parts))
    found = {id_of(item, owner, number): item for number, item in enumerate(items)}
    return {item_id: found[item_id] for item_id in wanted if item_id in found}


def page_of(text: bytes, owner: str, *, after: str, limit: int, descending: bool) -> bytes:
    """A page of a stored input. `after`: the id of the last item of the page before; empty: none.

    Raises NotFound if `after` is not among them.
    """
    items = split_input(text)
    ids = [id_of(item, owner, number) for number, item in enumerate(items)]
    order = list(range(len(items)))
    if descending:
        order.reverse()
    if after:
        places = {ids[number]: place for place, number in enumerate(order)}
        if after not in places:
            raise NotFound(f"Item with id {after[:64]!r} not found.")
        order = order[places[after] + 1 :]
    chosen = [stored_item(json.loads(items[n]), owner, n) for n in order[:limit]]
    return page(chosen, more=len(order) > limit)


def id_of(packed: bytes, owner: str, number: int) -> str:
    """The id of an item as `shown` has it."""
    head = _decode_head(packed)
    kind = str(head.type or "message")
    return head.id if isinstance(head.id, str) else _item_id(kind, owner, number)


def pack_item(item: Item) -> bytes:
    """The item as JSON."""
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()


def stored_item(item: Item, owner: str, number: int) -> StoredItem:
    """The item as a conversation keeps it: its id, and JSON."""
    shown_item = shown(item, owner, number)
    return shown_item["id"], pack_item(shown_item)


def shown(item: Item, owner: str, number: int) -> Item:
    """An item as lists show it: with an id, which depends on `owner` and its place there."""
    kind = str(item.get("type") or "message")
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        item_id = _item_id(kind, owner, number)
    fields = {"id": item_id, **item, "type": kind} | {"id": item_id}
    if kind == "message":
        fields.setdefault("status", "completed")
        content = item.get("content")
        if isinstance(content, str):
            fields["content"] = [_part(str(item.get("role")), content)]
    return fields


def page(items: Sequence[StoredItem], *, more: bool = False) -> bytes:
    """A page of items as OpenAI's lists are, as JSON. `more`: others follow them."""
    first, last = (items[0][0], items[-1][0]) if items else ("", "")
    ends = {"first_id": first, "last_id": last, "has_more": more}
    joined = b",".join([item for _, item in items])
    return b'{"object":"list","data":[%b],%b' % (joined, json.dumps(ends).encode()[1:])


def _without_logprobs(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {name: value for name, value in part.items() if name != "logprobs" and value is not None}


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _item_id(kind: str, owner: str, number: int) -> str:
    digest = sha256(f"{owner} {number}".encode()).hexdigest()[:32]
    return f"{_PREFIXES.get(kind, 'item')}_{digest}"
