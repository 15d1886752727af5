"""An answer in a form that can be compared with another one's. Pure.

Two runs of one request differ in the job's id and in `created` only, so both are replaced. Chunks
of several choices may come in another order after a worker was lost, so they are grouped by choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CREATED = re.compile(rb'("created": ?)(\d+)')
_ID = re.compile(rb'("id": ?")(?:chatcmpl|cmpl)-[^"]*')
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
    """Text by choice, where the client gets nothing else (events of a job that is not streamed)."""
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


def text_of(chunk: bytes) -> str:
    """Return the text of a chunk's first choice."""
    choices = json.loads(chunk).get("choices") or [{}]
    found = choices[0].get("text")
    if found is None:
        found = (choices[0].get("delta") or {}).get("content")
    return str(found or "")


def texts_of_body(body: bytes) -> dict[int, str]:
    """Return the text of each choice of an answer in one piece; empty if it is none."""
    try:
        choices: Sequence[Any] = json.loads(body).get("choices") or ()
        return {
            choice["index"]: choice["text"]
            if "text" in choice
            else choice["message"]["content"] or ""
            for choice in choices
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
