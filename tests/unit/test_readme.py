"""The README's lists are those of the code."""

from __future__ import annotations

import re

from gateway.http.not_supported import NOT_SUPPORTED
from shared.api.errors import FlotillaError
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


def test_every_route_that_is_not_supported_is_in_the_list() -> None:
    paths = {path.rstrip("/") for path in re.findall(r"`(/[\w/]+)`", section("Not supported yet"))}
    assert paths - {"/docs"} == set(NOT_SUPPORTED)
