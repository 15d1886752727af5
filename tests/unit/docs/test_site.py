"""The documentation site has every text; links lead somewhere; pictures are those of the texts.

`make docs` builds it, which also checks every link and heading.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from docs.repository_texts import MERMAID, PICTURES, ROOT, drawn, linked, picture_of

PAGES = ROOT / "docs" / "pages"
MADE = {
    *("operate/settings.md", "command-line.md"),
    *("api/reference.md", "api/schemas.md", "api/errors.md"),
}
LEFT_OUT = {"README.md", "tests/clients/README.md", "worker/demo/model/README.md"}
"""A new text has to be put on the site, or into this list."""
NAVIGATION = (ROOT / "docs" / "mkdocs.yml").read_text().split("\nnav:\n")[1]


def texts() -> set[str]:
    """The repository's texts beside those of docs/pages."""
    found = set(ROOT.glob("*.md"))
    for folder in ("compose", "gateway", "load_tests", "shared", "tests", "worker"):
        found |= set((ROOT / folder).rglob("*.md"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_navigation_has_every_page_and_every_text() -> None:
    pages = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    shown = set(re.findall(r"[\w/.-]+\.md", NAVIGATION))
    assert shown == pages | MADE | (texts() - LEFT_OUT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](../compose/README.md)", "[x](../compose/README.md)"),
        ("[x](../compose#gpu)", "[x](../compose/README.md#gpu)"),
        ("[x](../docs/pages/words.md#part)", "[x](../words.md#part)"),
        ("[x](#part)", "[x](#part)"),
        ("[app.py](app.py)", "`gateway/app.py`"),
        ("[`gateway/app.py`](app.py)", "`gateway/app.py`"),
        ("[its code](app.py)", "its code (`gateway/app.py`)"),
        ("![alt](../compose/README.md)", "![alt](../compose/README.md)"),
        ("[x](https://example.com/a.md)", "[x](https://example.com/a.md)"),
        ("`[x](nothing.md)`", "`[x](nothing.md)`"),
        ("```\n[x](nothing.md)\n```", "```\n[x](nothing.md)\n```"),
        ("[`--flag`](../SECURITY.md)", "[`--flag`](../SECURITY.md)"),
    ],
)
def test_links_lead_to_pages(text: str, expected: str) -> None:
    pages = {"compose/README.md", "words.md", "SECURITY.md"}
    # A file that exists, so that the text counts as one of the repository's and not of docs/pages.
    assert linked(text, "gateway/__init__.py", pages.__contains__) == expected


def test_links_of_a_page_lead_to_the_repositorys_texts() -> None:
    text = linked("[x](../../../SECURITY.md) [y](../words.md)", "api/index.md", lambda path: True)
    assert text == "[x](../SECURITY.md) [y](../words.md)"


def test_a_link_to_a_missing_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"SECURITY\.md links to nothing\.md"):
        linked("[x](nothing.md)", "SECURITY.md", lambda path: False)


DIAGRAMS = [
    diagram
    for text in sorted(texts() - LEFT_OUT)
    for diagram in MERMAID.findall((ROOT / text).read_text())
]


@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_a_diagram_is_replaced_by_a_picture_that_has_all_its_labels(diagram: str) -> None:
    assert drawn(f"```mermaid\n{diagram}```\n").count("<svg") == 1
    found = re.findall(r"<text[^>]*>(.*?)</text>", picture_of(diagram).read_text())
    shown = "".join(html.unescape("".join(found)).split())  # a label may have several lines
    labels = re.findall(r"(?:: |\|\s*|-- \")([^\"\n]+)", diagram)
    assert labels
    assert [word for label in labels for word in label.split() if word not in shown] == []


def test_a_diagram_without_a_picture_is_an_error() -> None:
    with pytest.raises(LookupError, match="flowchart LR"):
        drawn("```mermaid\nflowchart LR\n a --> b\n```\n")


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_needs_nothing_else(path: Path) -> None:
    svg = path.read_text()
    assert f'aria-labelledby="{path.stem}-title"' in svg
    assert f'<title id="{path.stem}-title">' in svg
    assert not re.search(r"<script|<style|<image|href=|font-family=", svg)
    assert set(re.findall(r'\bid="([^"]+)"', svg)) == {f"{path.stem}-title", f"{path.stem}-arrow"}
