"""A table of strings, printed as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is left-aligned, the others are right-aligned."""

    title: str
    head: Sequence[str]
    """Column names; a name may have several lines."""
    rows: Sequence[Sequence[str]]

    @classmethod
    def of_columns(cls, title: str, columns: Mapping[str, Sequence[str]]) -> Table:
        """Return a table of columns of equal length by their names."""
        return cls(title, list(columns), list(map(list, zip(*columns.values(), strict=True))))

    def text(self) -> str:
        """Return the table for a terminal."""
        heads = [name.split("\n") for name in self.head]
        depth = max(len(lines) for lines in heads)
        top = [[""] * (depth - len(lines)) + lines for lines in heads]
        lines = [*zip(*top, strict=True), *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        ruled = [_aligned(line, widths) for line in lines]
        ruled.insert(depth, "-" * max(map(len, ruled)))
        return "\n".join([self.title, "", *ruled])


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
