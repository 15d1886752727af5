"""Pictures inside of pages: SVG drawn by hand, which needs no script and follows the theme.

A diagram of a repository's file is text for Mermaid. On the site it is the picture in whose `desc`
this text stands, so a picture of an older text is not found and the build ends.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

from docs.builder.repository import PAGES

FOLDER = PAGES / "pictures"
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^<!-- picture (\S+) -->$", re.MULTILINE)
_DESCRIPTION = re.compile(r"<desc[^>]*>(.*?)</desc>", re.DOTALL)


def drawn(markdown: str) -> str:
    """The text with its diagrams, and `<!-- picture NAME -->`, replaced by pictures.

    Raises LookupError for a diagram without a picture.
    """
    markdown = _NAMED.sub(lambda match: _figure(FOLDER / f"{match[1]}.svg"), markdown)
    return MERMAID.sub(lambda match: _figure(picture_of(match[1])), markdown)


def picture_of(diagram: str) -> Path:
    """The picture of a diagram. Raises LookupError."""
    wanted = _words(diagram)
    for path, description in _descriptions():
        if description == wanted:
            return path
    first = diagram.strip().splitlines()[0]
    raise LookupError(f"no picture in {FOLDER} has this diagram in its <desc>: {first} ...")


@cache
def _descriptions() -> list[tuple[Path, str]]:
    found = []
    for path in sorted(FOLDER.glob("*.svg")):
        match = _DESCRIPTION.search(path.read_text())
        found.append((path, _words(html.unescape(match[1])) if match else ""))
    return found


def _words(text: str) -> str:
    return " ".join(text.split())


def _figure(path: Path) -> str:
    svg = _DESCRIPTION.sub("", path.read_text())  # in the page a long text would be read aloud
    lines = [line for line in svg.splitlines() if line.strip()]  # an empty one ends the HTML block
    return "\n".join(["<figure>", *lines, "</figure>"])
