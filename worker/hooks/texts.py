"""Where the texts are in an answer or a chunk, in the formats of OpenAI and Anthropic. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TEXTS = frozenset({"content", "text", "delta"})
_MORE_TEXTS = frozenset(
    {"reasoning", "reasoning_content", "thinking", "refusal", "arguments", "partial_json"}
)
_NO_TEXTS = frozenset({"logprobs", "prompt_logprobs", "usage", "metadata", "tools", "instructions"})
_EVENT_OF_RESPONSE, _ONE_DELTA = "response.", ".delta"


def text_places(
    part: dict[str, Any], *, everything: bool, repeated: bool = False
) -> Iterator[tuple[dict[str, Any], str]]:
    """(object, key) of each text in a part, in order.

    `everything`: reasoning and arguments of tool calls too. `repeated`: also in events that repeat
    the text of earlier ones (`response.completed` and others of the Responses API).
    """
    kind = part.get("type")
    if not repeated and isinstance(kind, str) and kind.startswith(_EVENT_OF_RESPONSE):
        if not kind.endswith(_ONE_DELTA):
            return
        if not everything and "text" not in kind:  # arguments, reasoning
            return
    yield from _places(part, _TEXTS | _MORE_TEXTS if everything else _TEXTS)


def texts_by_choice(part: dict[str, Any]) -> dict[int, str]:
    """The text of each choice in a part; formats without choices have only number 0."""
    choices = part.get("choices")
    if not isinstance(choices, list):
        return {0: _text_of(part)}
    return {int(choice.get("index", 0)): _text_of({"choices": [choice]}) for choice in choices}


def _text_of(part: dict[str, Any]) -> str:
    return "".join(holder[key] for holder, key in text_places(part, everything=False))


def _places(value: Any, keys: frozenset[str]) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(value, list):
        for each in value:
            yield from _places(each, keys)
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, str):
                if key in keys:
                    yield value, key
            elif key not in _NO_TEXTS:
                yield from _places(each, keys)
