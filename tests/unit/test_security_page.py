"""SECURITY.md is true: the tests and files that it names exist."""

from __future__ import annotations

import re

from tests.test_architecture import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_wall_has_a_test_that_exists() -> None:
    table = TEXT.split("## Which wall holds it")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.split(" | ")[2])
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_every_file_that_it_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert [link for link in links if not (ROOT / link).exists()] == []
