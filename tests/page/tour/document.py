"""Reads docs/pages/tour.md: the commands of each minute, and the pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "pages" / "tour.md"
URL = "http://127.0.0.1:8000"
"""The address in the document; a run has a port of its own."""


@dataclass(frozen=True, slots=True)
class Minute:
    """One section."""

    title: str
    commands: tuple[str, ...]
    """Its blocks of shell commands."""


def minutes(text: str) -> list[Minute]:
    """The sections in their order; the first one is minute 0."""
    sections = re.split(r"^## Minute \d+: ", text, flags=re.MULTILINE)[1:]
    return [
        Minute(
            section.partition("\n")[0],
            tuple(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)),
        )
        for section in sections
    ]


def pictures(text: str) -> list[str]:
    """The names of the pictures in their order."""
    return re.findall(r"!\[[^\]]+\]\(tour/([\w-]+\.png)\)", text)
