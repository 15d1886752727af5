"""Markdown tables made of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells may have Markdown, on one line each."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cells in rows:
        texts = (plain(" ".join(cell.split())).replace("|", "\\|") for cell in cells)
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """The text with `<name>` shown as it is, where it would be an HTML tag."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"<(?=[a-zA-Z/])", "&lt;", part) for part in parts[::2]]
    return "".join(parts)
