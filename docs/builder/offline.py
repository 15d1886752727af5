"""Whether a built site loads nothing from other hosts, so that it works without a network."""

from __future__ import annotations

import re
from pathlib import Path

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|icon))"""
    r"""[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""",
    re.IGNORECASE,
)


def loaded_from_elsewhere(html: str) -> list[str]:
    """The addresses on other hosts that a browser loads for a page."""
    return [one or other for one, other in _LOADED.findall(html)]


def check(site: Path) -> None:
    """Raise ValueError if a page of the site loads something from another host."""
    for path in sorted(site.rglob("*.html")):
        for address in loaded_from_elsewhere(path.read_text()):
            raise ValueError(f"{path.relative_to(site)} loads {address}")
