"""Text of clients for terminals and logs: without what controls a terminal or reorders a line."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # ESC and its eight-bit forms; not tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # line ends, and marks of writing direction
)


def printable(text: str) -> str:
    """The text with a replacement character for each of them."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    r"""The text with `\u001b` for each of them: the same value where the text is JSON."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
