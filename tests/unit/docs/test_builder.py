"""What makes the documentation site's pages: sections, links, tables, pictures. No MkDocs."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.builder import links, offline, pictures, sections, tables
from docs.builder.links import Homes
from docs.builder.sections import section
from tests.test_architecture import ROOT

README = ROOT / "README.md"
TEXT = """# Title

## One

text

```sh
# no heading
```

### Part of one

more

## `Two`, and more

end
"""


def test_headings_are_found_outside_of_code() -> None:
    found = [(each.level, each.text, each.anchor) for each in sections.headings(TEXT)]
    assert found == [
        (1, "Title", "title"),
        (2, "One", "one"),
        (3, "Part of one", "part-of-one"),
        (2, "`Two`, and more", "two-and-more"),
    ]


def test_a_section_ends_at_the_next_heading_of_its_level() -> None:
    assert sections.section(TEXT, "One").startswith("## One\n")
    assert sections.section(TEXT, "One").endswith("### Part of one\n\nmore\n")
    assert sections.section(TEXT, "Part of one") == "### Part of one\n\nmore\n"
    assert sections.section(TEXT, "`Two`, and more").endswith("end\n")
    with pytest.raises(KeyError):
        sections.section(TEXT, "Three")


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    for name in ("a/A.md", "a/code.py", "b/README.md", "README.md", "picture.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    files = {"a/A.md": "in/a.md", "b/README.md": "b.md", "README.md": "index.md"}
    return Homes(tmp_path, files | {"picture.png": "p.png"}, {("README.md", "words"): "words.md"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](../b/README.md)", "[x](../b.md)"),
        ("[x](../b#part)", "[x](../b.md#part)"),
        ("[x](A.md#part)", "[x](#part)"),
        ("[x](#part)", "[x](#part)"),
        ("[words](../README.md#words)", "[words](../words.md#words)"),
        ("[all](../README.md#other)", "[all](../index.md#other)"),
        ("[code.py](code.py)", "`a/code.py`"),
        ("[`a/code.py`](code.py)", "`a/code.py`"),
        ("[its code](code.py)", "its code (`a/code.py`)"),
        ("![alt](../picture.png)", "![alt](../p.png)"),
        ("[x](https://example.com/a.md)", "[x](https://example.com/a.md)"),
        ("`[x](nothing.md)`", "`[x](nothing.md)`"),
        ("```\n[x](nothing.md)\n```", "```\n[x](nothing.md)\n```"),
        ("[`--flag`](A.md)", "[`--flag`](a.md)"),
    ],
)
def test_links_lead_to_pages(text: str, expected: str, homes: Homes) -> None:
    assert links.rewritten(text, "a/A.md", "in/a.md", homes) == expected


def test_a_link_to_a_missing_file_is_an_error(homes: Homes) -> None:
    with pytest.raises(FileNotFoundError, match=r"a/A\.md links to nothing\.md"):
        links.rewritten("[x](nothing.md)", "a/A.md", "in/a.md", homes)


def test_tables_show_bars_and_angles() -> None:
    made = tables.table(("a", "b"), [("x|y", "<name> `<code>`"), ("two\nlines", "1 < 2")])
    assert made == "| a | b |\n|---|---|\n| x\\|y | &lt;name> `<code>` |\n| two lines | 1 < 2 |\n"


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ("<img alt=x src=//cdn.example/x.png>", ["//cdn.example/x.png"]),
        ('<link rel="stylesheet" href="https://fonts.example/f">', ["https://fonts.example/f"]),
        ('<link href="https://fonts.example/f" rel=stylesheet>', ["https://fonts.example/f"]),
        ('<link rel="canonical" href="https://example.com">', []),
        ('<a href="https://example.com">x</a><script src="a.js"></script>', []),
    ],
)
def test_what_is_loaded_from_other_hosts_is_found(html: str, expected: list[str]) -> None:
    assert offline.loaded_from_elsewhere(html) == expected


def test_a_diagram_is_replaced_by_its_picture() -> None:
    (diagram,) = pictures.MERMAID.findall(section(README.read_text(), "How a request flows"))[1:]
    text = pictures.drawn(f"a\n\n```mermaid\n{diagram}```\n\n<!-- picture slots -->\n")
    assert text.count("<svg") == 2
    assert "mermaid" not in text
    with pytest.raises(LookupError, match="flowchart LR"):
        pictures.drawn("```mermaid\nflowchart LR\n a --> b\n```\n")
