"""What is in an answer, for hooks: its JSON objects and their texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from shared.job.errors import AnswerTooLarge, Refused

_DATA = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)
_MOST_BYTES = 16 << 20
_MOST_OBJECTS = 25_000
"""In one parsed piece. Each log probability is an object; a million numbers are none."""
_TEXTS = {"content", "text", "delta"}
_MORE_TEXTS = {
    "reasoning", "reasoning_content", "thinking", "refusal", "arguments", "partial_json",
}  # fmt: skip
_NO_TEXTS = {"logprobs", "prompt_logprobs", "usage", "metadata", "tools", "instructions"}


def parts_of(content_type: str, body: bytes) -> list[Any]:
    """The JSON objects of an answer, of a stream those of its events; none if it is bytes.

    Raises Refused if the answer is too large, ValueError if it is no JSON. It takes up to a second.
    """
    streamed = content_type.startswith("text/event-stream")
    pieces = [body] if content_type.startswith("application/json") else []
    if streamed:
        pieces = _DATA.findall(body)
    if len(body) > _MOST_BYTES or any(piece.count(b"{") > _MOST_OBJECTS for piece in pieces):
        raise Refused(
            f"The hooks of this model's pool check answers of at most {_MOST_BYTES} bytes, and "
            f"{_MOST_OBJECTS} JSON objects in one piece. Ask for less at once.",
            AnswerTooLarge.status,
            AnswerTooLarge.code,
        )
    if content_type.startswith("text/") and not streamed:
        return [{"text": body.decode(errors="replace")}]
    return [msgspec.json.decode(piece) for piece in pieces]


def texts(part: Any, *, everything: bool) -> Iterator[str]:
    """The texts of a part, in order; `everything`: reasoning and arguments of tool calls too.

    Not those of events that repeat earlier ones (`response.completed` of the Responses API).
    """
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    one_delta = kind.endswith(".delta") and (everything or "text" in kind)
    if one_delta or not kind.startswith("response."):
        yield from _texts(part, _TEXTS | _MORE_TEXTS if everything else _TEXTS)


def _texts(value: Any, keys: set[str]) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _texts(each, keys)
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, str):
                if key in keys:
                    yield each
            elif key not in _NO_TEXTS:
                yield from _texts(each, keys)
