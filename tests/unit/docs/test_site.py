"""The documentation site has everything: all settings, calls, commands and pages, and no dead end.

`make docs` builds it, which also checks every link and heading.
"""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
import yaml
from typer.main import get_command

from docs.builder import (
    api_reference,
    command_reference,
    pictures,
    repository,
    setting_tables,
)
from gateway.cli.main import app
from tests.settings import Settings
from tests.test_architecture import ROOT

MADE = {"operate/settings.md", "api/reference.md", "api/schemas.md", "command-line.md"}
CONFIG = (ROOT / "docs" / "mkdocs.yml").read_text()


class _Loader(yaml.SafeLoader):
    """Skips the one value of mkdocs.yml that is a Python function."""


_Loader.add_multi_constructor("!!python/", lambda *_: None)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def in_navigation(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    entries = entry.values() if isinstance(entry, dict) else entry
    return set().union(*map(in_navigation, entries))


def written() -> set[str]:
    return {
        path.relative_to(repository.PAGES).as_posix() for path in repository.PAGES.rglob("*.md")
    }


def test_the_navigation_has_every_page() -> None:
    config = yaml.load(CONFIG, _Loader)
    included = {page for page in repository.FILES.values() if page.endswith(".md")}
    assert in_navigation(config["nav"]) == written() | included | MADE


def test_every_text_of_the_repository_is_on_the_site() -> None:
    """READMEs of single folders may be left out; a new one has to be added to one of the lists."""
    left_out = {"README.md", "tests/clients/README.md", "worker/demo/model/README.md"}
    folders = ("compose", "gateway", "load_tests", "shared", "tests", "worker")
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md")}
    for folder in folders:
        found |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.md")}
    assert found - left_out == {file for file in repository.FILES if file.endswith(".md")}


def test_every_link_of_an_included_text_leads_somewhere() -> None:
    places = repository.homes()
    assert {page for page, _ in repository.pages(places)} <= set(repository.FILES.values())
    for page in written():
        text = (repository.PAGES / page).read_text()
        assert "<!-- include" not in repository.included(text, page, places)


def test_every_setting_is_on_the_page_with_a_description() -> None:
    page = setting_tables.page()
    for name in Settings.model_fields:
        assert f"| `FLOTILLA_{name.upper()}` |" in page
    assert re.findall(r"^\| (`\S+`) .*\|\s+\|$", page, re.MULTILINE) == []


async def test_every_call_and_every_body_is_on_its_page() -> None:
    described = await api_reference.description()
    calls, bodies = api_reference.calls_page(described), api_reference.schemas_page(described)
    for path, operations in described["paths"].items():
        for method in operations:
            assert f"### `{method.upper()} {path}`\n" in calls
    anchors = {name.lower() for name in described["components"]["schemas"]}
    assert set(re.findall(r"schemas\.md#(\w+)", calls)) <= anchors
    assert set(re.findall(r"\]\(#(\w+)\)", bodies)) <= anchors


def test_every_command_is_on_the_page() -> None:
    page = command_reference.page(app)
    waiting = [("flotilla", get_command(app))]
    while waiting:
        name, command = waiting.pop()
        assert re.search(rf"^#+ `{name}`$", page, re.MULTILINE)
        for part, each in getattr(command, "commands", {}).items():
            waiting.append((f"{name} {part}", each))


def diagrams() -> list[str]:
    found = []
    for file in ("README.md", *repository.FILES):
        if file.endswith(".md"):
            found += pictures.MERMAID.findall((ROOT / file).read_text())
    return found


@pytest.mark.parametrize("diagram", diagrams())
def test_a_picture_has_all_labels_of_its_diagram(diagram: str) -> None:
    svg = pictures.picture_of(diagram).read_text()
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    shown = "".join(html.unescape("".join(texts)).split())  # a label may have several lines
    labels = re.findall(r"(?:: |\|\s*|-- \")([^\"\n]+)", diagram)
    assert labels
    for label in labels:
        for word in label.split():
            assert word in shown, f"{word!r} of {label!r}"


@pytest.mark.parametrize("path", sorted(pictures.FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_needs_nothing_else(path: Any) -> None:
    svg = path.read_text()
    assert f'aria-labelledby="{path.stem}-title"' in svg
    assert f'<title id="{path.stem}-title">' in svg
    assert not re.search(r"<script|<style|<image|href=|font-family=", svg)
    assert set(re.findall(r'\bid="([^"]+)"', svg)) == {f"{path.stem}-title", f"{path.stem}-arrow"}
