"""Nothing moves when figures grow, and nothing is cut off, from a phone to a wide screen."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import OpenTab
from tests.page.overviews import SCENES, growing, incident, quiet
from tests.page.stand_in import StandIn
from tests.page.views import VIEWS, show

WIDTHS = {"phone": 360, "tablet": 768, "laptop": 1280, "wide": 1920}
STEPS = 12


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_moves_while_figures_grow(open_tab: OpenTab, stand_in: StandIn, width: int) -> None:
    stand_in.show(growing(0))
    page = show(open_tab(stand_in.url, width=width), "fleet")
    _drawn(page, stand_in)
    page.evaluate("measured.resetShifts()")
    before = _boxes(page)
    for step in range(1, STEPS + 1):
        stand_in.show(growing(step / STEPS))
        _drawn(page, stand_in)
    assert page.evaluate("measured.shifts()") == []
    assert _moved(before, _boxes(page)) == []


def test_nothing_moves_when_a_worker_loses_its_heartbeat_but_what_reports_it(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    """The panel that reports may move to the top; back on a good day all is as before."""
    page = show(open_tab(stand_in.url), "fleet")
    _drawn(page, stand_in)
    before = _boxes(page)
    stand_in.show(incident())
    expect(page.locator("#verdict")).to_have_attribute("data-level", "problem")
    stand_in.show(quiet())
    expect(page.locator("#verdict")).to_have_attribute("data-level", "ok")
    assert _moved(before, _boxes(page)) == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_cut_off_on_good_and_bad_days(
    open_tab: OpenTab, stand_in: StandIn, scene: str, width: int
) -> None:
    stand_in.show(SCENES[scene]())
    page = show(open_tab(stand_in.url, width=width), "fleet")
    _drawn(page, stand_in)
    assert page.evaluate("measured.cutOff()") == []
    assert page.evaluate("measured.mistakes()") == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "fleet"])
def test_nothing_is_cut_off_in_a_view(
    open_tab: OpenTab, stand_in: StandIn, view: str, width: int
) -> None:
    page = show(open_tab(stand_in.url, width=width), view)
    _drawn(page, stand_in)
    assert page.evaluate("measured.cutOff()") == []
    assert page.evaluate("measured.mistakes()") == []


def _drawn(page: Page, stand_in: StandIn) -> None:
    """Wait until the page has drawn the overview that is shown now."""
    stand_in.wait_until_shown()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")


def _boxes(page: Page) -> list[dict[str, Any]]:
    """Where the panels are, and how large."""
    boxes: list[dict[str, Any]] = page.evaluate("measured.boxes('[data-panel], header, nav')")
    return [{"box": each["box"], "name": each["name"].split(' "')[0]} for each in boxes]


def _moved(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The boxes that are elsewhere, or of another size, by more than the rounding of a pixel."""
    assert [each["name"] for each in before] == [each["name"] for each in after]
    return [
        one
        for one, other in zip(after, before, strict=True)
        if any(abs(x - y) > 1 for x, y in zip(one["box"], other["box"], strict=True))
    ]
