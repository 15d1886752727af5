"""Splits the bytes of a stream into server-sent events, however the network has cut them."""

from __future__ import annotations

import json
import re

_BLOCK_END = re.compile(rb"\r?\n\r?\n")
_IGNORED = re.compile(rb"(?::[^\r\n]*)?\r?\n")
"""A comment, or an empty line. Before an event they are no part of it."""
_BEFORE_END = 3
"""Bytes of a block's end that may have come without its last one."""
_LAST_DATA = b"[DONE]"
# Of OpenAI's responses and of Anthropic's messages, which have no `[DONE]`.
_LAST_NAMES = frozenset(
    {b"message_stop", b"response.completed", b"response.failed", b"response.incomplete"}
)


class EventSplitter:
    """Returns complete events, each with its empty line, and comments, each a line before an
    event; keeps what is not complete yet."""

    def __init__(self) -> None:
        self.rest = bytearray()
        """The beginning of a block that is not complete."""

    def feed(self, data: bytes) -> list[bytes]:
        """The events and comments that are complete with these bytes."""
        searched = max(0, len(self.rest) - _BEFORE_END)  # an event may come in very many parts
        self.rest += data
        start, blocks = 0, []
        while match := _IGNORED.match(self.rest, start) or _BLOCK_END.search(
            self.rest, max(start, searched)
        ):
            blocks.append(bytes(self.rest[start : match.end()]))
            start = match.end()
        del self.rest[:start]
        return blocks


def is_comment(block: bytes) -> bool:
    """Whether a block of EventSplitter's is a comment or an empty line, not an event."""
    return block.startswith((b":", b"\r", b"\n"))


def is_last(event: bytes) -> bool:
    """Whether no event of the same answer can follow this one."""
    return field(event, b"data") == _LAST_DATA or field(event, b"event") in _LAST_NAMES


def error_code(event: bytes) -> str | None:
    """The code of an error event, empty if the error has none; None for any other event."""
    if b'"error"' not in event:
        return None
    try:
        data = json.loads(field(event, b"data"))
    except ValueError:
        return None
    error = data.get("error") if isinstance(data, dict) else None
    return str(error.get("code") or "") if isinstance(error, dict) else None


def error_event(body: bytes) -> bytes:
    """The body of an error as an event; Anthropic's SDK reads named ones only."""
    name = b"event: error\n" if body.startswith(b'{"type": "error"') else b""
    return name + b"data: " + body + b"\n\n"


def field(event: bytes, name: bytes) -> bytes:
    """The value of the first field of this name."""
    for line in event.splitlines():
        found, colon, value = line.partition(b":")
        if colon and found == name:
            return value.removeprefix(b" ")
    return b""
