"""A browser for the tests of the page, and a gateway with made-up figures behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.page.browser import Tab
    from tests.page.stand_in import StandIn

OpenTab = Callable[..., "Tab"]
_MISSING = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
collect_ignore_glob = ["*.py"] if _MISSING else []


def pytest_report_header() -> str | None:
    """Why nothing is collected here."""
    if _MISSING:
        return f"tests/page: not collected without {', '.join(_MISSING)}: make test-page"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in this folder have the marker `page`."""
    for item in items:
        if "tests/page/" in item.nodeid:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests of this process."""
    from tests.page.browser import NAMES, launched

    with launched() as browser:
        if browser is None:
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed, nor $CHROMIUM set")
        yield browser


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Makes a tab: `open_tab(url, width=..., scheme="dark")`. At the end no tab may have faults."""
    from tests.page.browser import Tab

    tabs: list[Tab] = []

    def make(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield make
    faults = [fault for tab in tabs for fault in tab.unexpected()]
    for tab in tabs:
        tab.close()
    assert faults == []


@pytest.fixture(scope="session")
def _stand_in() -> Iterator[StandIn]:
    from tests.page.stand_in import StandIn

    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def stand_in(_stand_in: StandIn) -> StandIn:
    """A gateway that shows the scene `quiet` until the test shows another one."""
    _stand_in.reset()
    return _stand_in
