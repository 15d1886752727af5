"""The tour of docs/pages/tour.md works as it stands, and its pictures are there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.page.tour.document import DOCUMENT, minutes, pictures
from tests.page.tour.walk import Walk

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LARGEST = 300_000  # bytes: the pictures are in the repository


@pytest.mark.timeout(600)
def test_the_tour_works_as_it_is_written(browser: Browser, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # short enough for a socket's path
        walk = Walk(browser, Path(folder), tmp_path)
        walk.run()
    assert walk.taken == pictures(DOCUMENT.read_text())


def test_the_pictures_of_the_tour_are_in_the_docs() -> None:
    folder = DOCUMENT.with_suffix("")
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == sorted(pictures(DOCUMENT.read_text()))
    assert [path.name for path in folder.iterdir() if path.stat().st_size > LARGEST] == []


def test_the_document_is_read_by_minutes() -> None:
    text = "# T\n## Minute 0: go\n```sh\nmake up\n```\nmore\n```sh\na\nb\n```\n## Minute 1: end\n"
    first, last = minutes(text)
    assert (first.title, first.commands) == ("go", ("make up\n", "a\nb\n"))
    assert (last.title, last.commands) == ("end", ())
    assert pictures("![a b](tour/01-x.png) [no](tour/2.png)") == ["01-x.png"]
