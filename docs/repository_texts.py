"""Texts of the repository on the site: where each one is, their links, and their pictures.

A text has on the site the path that it has in the repository, without `docs/pages/`.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pages" / "pictures"
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGES = "docs/pages/"
_PICTURE = re.compile(r"^<!-- picture (\S+) -->$", re.MULTILINE)
_DESCRIPTION = re.compile(r"<desc[^>]*>(.*?)</desc>", re.DOTALL)
_LINK = re.compile(
    r"```.*?```|`[^`\n]*`"
    r"|(?P<label>!?\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\])\((?P<target>[^()\s#]+)(?P<anchor>#\S*)?\)",
    re.DOTALL,
)


def source_of(page: str) -> str:
    """The path in the repository of a page of the site."""
    return page if (ROOT / page).is_file() else _PAGES + page


def linked(text: str, page: str, on_site: Callable[[str], bool]) -> str:
    """A page's text with links that lead to pages of the site.

    Files that are not on the site keep their path, without a link. Raises FileNotFoundError for a
    link to nothing.
    """
    source = source_of(page)

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        for home in (file.removeprefix(_PAGES), f"{file}/README.md"):
            if on_site(home):
                place = posixpath.relpath(home, posixpath.dirname(page) or ".")
                return f"{match['label']}({place}{match['anchor'] or ''})"
        if not (ROOT / file).exists():
            raise FileNotFoundError(f"{source} links to {target}, which does not exist")
        named = match["text"].strip("`").rstrip("/") in (posixpath.basename(file), file)
        return f"`{file}`" if named else f"{match['text']} (`{file}`)"

    return _LINK.sub(link, text)


def drawn(text: str) -> str:
    """The text with its Mermaid diagrams, and `<!-- picture NAME -->`, replaced by pictures."""
    text = _PICTURE.sub(lambda match: _figure(PICTURES / f"{match[1]}.svg"), text)
    return MERMAID.sub(lambda match: _figure(picture_of(match[1])), text)


def picture_of(diagram: str) -> Path:
    """The picture with this diagram in its `desc`; LookupError if there is none of this text."""
    for path in sorted(PICTURES.glob("*.svg")):
        found = _DESCRIPTION.search(path.read_text())
        if found and html.unescape(found[1]).split() == diagram.split():
            return path
    raise LookupError(f"no picture has this diagram in its <desc>: {diagram.strip()[:40]} ...")


def _figure(path: Path) -> str:
    svg = _DESCRIPTION.sub("", path.read_text())  # in the page a long text would be read aloud
    lines = [line for line in svg.splitlines() if line.strip()]  # an empty one ends the HTML block
    return "\n".join(["<figure>", *lines, "</figure>"])
