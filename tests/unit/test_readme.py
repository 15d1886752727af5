"""README.md and docs/pages are true: lists are those of the code, links lead somewhere."""

from __future__ import annotations

import posixpath
import re

import pytest

from shared.api.field_policy import NEEDS_PERMISSION
from shared.job.errors import FlotillaError
from tests.test_architecture import ROOT

README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "pages" / "api" / "index.md").read_text()
TEXTS = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
MADE = {"docs/pages/operate/settings.md", "docs/pages/command-line.md"} | {
    f"docs/pages/api/{name}.md" for name in ("reference", "schemas")
}
"""Pages of the site that are made of the code."""


def section(title: str) -> str:
    return API.split(f"## {title}\n", 1)[1].split("\n#", 1)[0]


def codes(root: type[FlotillaError] = FlotillaError) -> set[tuple[int, str]]:
    own = {(root.status, root.code)} if root.code else set()
    return own.union(*(codes(child) for child in root.__subclasses__()))


def test_every_error_code_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", section("Errors"), re.MULTILINE)
    shown = {(int(status), code) for status, cell in rows for code in re.findall(r"`(\w+)`", cell)}
    assert shown == codes()


def test_every_field_that_needs_permission_is_in_the_list() -> None:
    shown = set(re.findall(r"`([a-z_]+)`", section("Fields that need permission")))
    assert set(NEEDS_PERMISSION) <= shown


def anchors(text: str) -> set[str]:
    """The anchors of a text's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("text", TEXTS)
def test_every_link_leads_to_a_file_and_a_heading(text: str) -> None:
    content = re.sub(r"```.*?```", "", (ROOT / text).read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", content):
        file = (
            posixpath.normpath(posixpath.join(posixpath.dirname(text), target)) if target else text
        )
        if file not in MADE:
            assert (ROOT / file).exists(), target
            assert not anchor or anchor in anchors((ROOT / file).read_text()), f"{target}#{anchor}"


def test_it_is_one_page_with_a_map_of_the_folders() -> None:
    assert README.count("\n") <= 120
    folders = README.split("## Where things are\n")[1]
    for package in ("shared", "gateway", "worker"):
        for folder in (ROOT / package).iterdir():
            if folder.is_dir() and any(folder.glob("*.py")):
                assert f"]({package}/{folder.name})" in folders, f"{package}/{folder.name}"
