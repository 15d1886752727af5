"""An answer in a form that can be compared with another one's. Pure.

Two runs of one request differ in the job's id and in `created` only, so both are replaced. Chunks
of several choices may come in another order after a worker was lost, so they are grouped by choice.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_CREATED = re.compile(rb'("created": ?)(\d+)')
_ID = re.compile(rb'("id": ?")(?:chatcmpl|cmpl)-[^"]*')
_ENDS = ("finish_reason", "stop_reason")
DONE = b"[DONE]"
Chunks = dict[int | None, list[bytes]]
"""The chunks of a stream by the index of their choice; None: chunks without choices."""


@dataclass(slots=True)
class Answer:
    """What a client got of an answer, or what it should get."""

    chunks: Chunks = field(default_factory=dict)
    created: set[int] = field(default_factory=set)
    """All values of `created`."""
    done: bool = False
    """The stream ended with `[DONE]`."""
    status: int = 0
    body: bytes = b""
    """An answer in one piece."""
    texts: dict[int, str] = field(default_factory=dict)
    """Text by choice, of the chunks or of a job's events."""
    usage: dict[str, Any] | None = None

    def add_chunk(self, data: bytes) -> int:
        """Add the data of an event of a stream; return how many tokens it may carry."""
        if data == DONE:
            self.done = True
            return 0
        self.created.update(int(found[1]) for found in _CREATED.findall(data))
        index = None
        try:
            parsed = json.loads(data)
            self.usage = parsed.get("usage") or self.usage
            if choices := parsed.get("choices"):
                index = choices[0]["index"]
                self.add_text(index, _text(choices[0]))
        except (ValueError, LookupError, TypeError, AttributeError):
            pass  # damaged bytes: no chunk of the undisturbed answer equals them
        self.chunks.setdefault(index, []).append(comparable(data))
        return 1

    def set_body(self, status: int, body: bytes) -> None:
        """Set an answer in one piece."""
        self.created.update(int(found[1]) for found in _CREATED.findall(body))
        self.status, self.body = status, comparable(body)
        try:
            self.usage = json.loads(body).get("usage")
        except ValueError:
            self.usage = None

    def add_text(self, index: int, text: str) -> None:
        """Add the text of a choice."""
        self.texts[index] = self.texts.get(index, "") + text


def comparable(data: bytes) -> bytes:
    """Replace what differs between two runs of one request."""
    return _ID.sub(rb"\1ID", _CREATED.sub(rb"\g<1>0", data))


def texts_of_body(body: bytes) -> dict[int, str]:
    """Return the text of each choice of an answer in one piece; empty if it is none."""
    try:
        return {
            choice["index"]: choice["text"]
            if "text" in choice
            else choice["message"]["content"] or ""
            for choice in json.loads(body).get("choices") or ()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def joined(chunks: Chunks) -> Chunks:
    """Return a part for each token or word of each choice, and one for its end.

    vLLM merges the tokens of steps that its caller was too slow for into one chunk. So of each
    choice the parts are compared that all its chunks have together: token ids if the request asks
    for them, else the tokens of logprobs, else the words of the text; then its end. The values of
    logprobs are left out: their last digits depend on the number of neighbours in the batch.
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
