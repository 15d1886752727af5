"""Chunks of a stream, made comparable where their bounds differ by chance. Pure.

vLLM merges the tokens of steps that its caller was too slow for into one chunk. So of each choice
the parts are compared that all its chunks have together: token ids if the request asks for them,
else the tokens of logprobs, else the words of the text; then its end. The values of logprobs are
left out: their last digits depend on the number of neighbours in the batch.
"""

from __future__ import annotations

import json
from typing import Any

from load_tests.faults.kills.answer import Chunks

_ENDS = ("finish_reason", "stop_reason")


def joined(chunks: Chunks) -> Chunks:
    """Return a part for each token or word of each choice, and one for its end.

    Chunks that are no JSON, or have no choices, stay as they are.
    """
    found: Chunks = {}
    for index, datas in chunks.items():
        try:
            choices = [json.loads(data)["choices"][0] for data in datas]
        except (ValueError, LookupError, TypeError):
            found[index] = datas
            continue
        ends = [[choice.get(name) for name in _ENDS] for choice in choices]
        end = [json.dumps(each).encode() for each in ends if any(each)]
        found[index] = [*_parts(choices, ended=bool(end)), *end]
    return found


def _parts(choices: list[dict[str, Any]], *, ended: bool) -> list[bytes]:
    ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    if ids:
        return [b"%d" % token for token in ids]
    if tokens := [token.encode() for choice in choices for token in _tokens(choice)]:
        return tokens
    words = "".join(map(_text, choices)).encode().split(b" ")
    return words if ended else words[:-1]  # the last word may be incomplete


def _tokens(choice: dict[str, Any]) -> list[str]:
    logprobs = choice.get("logprobs") or {}
    return logprobs.get("tokens") or [each["token"] for each in logprobs.get("content") or ()]


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
