"""Links of a repository's file, as a page of the site has them.

A link to a file that has a page leads to the page. Other files are not on the site: their path
stays, without a link. A link to a file that does not exist ends the build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_LINK = re.compile(
    r"(?P<code>```.*?```|~~~.*?~~~)"
    r"|(?P<image>!?)\[(?P<label>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<target>[^()\s]+)\)"
    r"|`[^`\n]*`",
    re.DOTALL,
)


class Homes(NamedTuple):
    """Where on the site the repository's files are."""

    root: Path
    """The repository's folder."""
    files: Mapping[str, str]
    """File -> page, both as paths with `/`, from the root and from the folder of the pages."""
    sections: Mapping[tuple[str, str], str]
    """(file, anchor) -> page, of files whose sections are on different pages."""


def rewritten(text: str, source: str, page: str, homes: Homes) -> str:
    """The text of a file (`source`) with the links that it needs on a page of the site.

    Raises FileNotFoundError for a link to a file that does not exist.
    """

    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        return _link(match["image"], match["label"], target, source, page, homes)

    return _LINK.sub(replaced, text)


def _link(image: str, label: str, target: str, source: str, page: str, homes: Homes) -> str:
    path, _, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    home = _page_of(file, anchor, homes)
    if home is not None:
        place = "" if home == page and anchor else posixpath.relpath(home, _folder(page))
        return f"{image}[{label}]({place}{'#' if anchor else ''}{anchor})"
    if not (homes.root / file).exists():
        raise FileNotFoundError(f"{source} links to {target}, which does not exist")
    same = label.strip("`").rstrip("/") in (posixpath.basename(file), file)
    return f"`{file}`" if same else f"{label} (`{file}`)"


def _page_of(file: str, anchor: str, homes: Homes) -> str | None:
    if (file, anchor) in homes.sections:
        return homes.sections[file, anchor]
    return homes.files.get(file) or homes.files.get(f"{file}/README.md")


def _folder(page: str) -> str:
    return posixpath.dirname(page) or "."
