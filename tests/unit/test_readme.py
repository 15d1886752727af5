"""The README is true: its lists are those of the code, and the files that it names exist."""

from __future__ import annotations

import re

from shared.api.field_policy import NEEDS_PERMISSION
from shared.job.errors import FlotillaError
from tests.test_architecture import ROOT

TEXT = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]


def codes(root: type[FlotillaError] = FlotillaError) -> set[tuple[int, str]]:
    own = {(root.status, root.code)} if root.code else set()
    return own.union(*(codes(child) for child in root.__subclasses__()))


def test_every_error_code_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", section("Errors"), re.MULTILINE)
    shown = {(int(status), code) for status, cell in rows for code in re.findall(r"`(\w+)`", cell)}
    assert shown == codes()


def test_every_file_that_it_links_to_exists() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert len(links) > 60
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_heading_that_it_links_to_exists() -> None:
    for file, heading in re.findall(r"\]\(([\w/.]+\.md)#([^)]+)\)", TEXT):
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert heading in slugs, f"{file} has no heading {heading}"


def test_the_map_answers_the_first_ten_questions() -> None:
    rows = re.findall(r"^\| \*\*(.*?)\*\* \| .*\]\(", TEXT, re.MULTILINE)
    assert len(rows) == 10


def test_every_field_that_needs_permission_is_in_the_list() -> None:
    shown = set(re.findall(r"`([a-z_]+)`", section("Fields that need permission")))
    assert set(NEEDS_PERMISSION) <= shown
