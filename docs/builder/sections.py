"""Headings and sections of a Markdown text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_HEADING = re.compile(r"(#+) (.*)")
_FENCE = re.compile(r"\s*(```+|~~~+)")


class Heading(NamedTuple):
    """A heading: its level (1 is the title), its text, the number of its line."""

    level: int
    text: str
    line: int

    @property
    def anchor(self) -> str:
        """The part of an address behind `#` that leads to the heading."""
        return re.sub(r"[^\w -]", "", self.text.lower()).replace(" ", "-")


def headings(text: str) -> Iterator[Heading]:
    """The headings of a text; lines of code blocks that begin with `#` are none."""
    fence = ""
    for number, line in enumerate(text.splitlines()):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = ""
        elif not fence and (found := _HEADING.fullmatch(line)):
            yield Heading(len(found[1]), found[2], number)


def section(text: str, title: str) -> str:
    """The section with this heading, the heading included. Raises KeyError if there is none."""
    lines, found = text.splitlines(), list(headings(text))
    for index, heading in enumerate(found):
        if heading.text == title:
            behind = (each.line for each in found[index + 1 :] if each.level <= heading.level)
            return "\n".join(lines[heading.line : next(behind, len(lines))]).rstrip() + "\n"
    raise KeyError(title)
