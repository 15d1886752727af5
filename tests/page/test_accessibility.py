"""Everybody can use the page: axe's rules, contrast, and the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.axe import violations
from tests.page.conftest import OpenTab
from tests.page.overviews import SCENES
from tests.page.stand_in import StandIn
from tests.page.views import VIEWS, show

_MOST_TABS = 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious_in_a_view(
    open_tab: OpenTab, stand_in: StandIn, view: str, scheme: str
) -> None:
    assert violations(show(open_tab(stand_in.url, scheme=scheme), view)) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scene", SCENES)
def test_axe_finds_nothing_serious_on_good_and_bad_days(
    open_tab: OpenTab, stand_in: StandIn, scene: str, scheme: str
) -> None:
    stand_in.show(SCENES[scene]())
    assert violations(show(open_tab(stand_in.url, scheme=scheme), "fleet")) == []


@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_every_control_and_shows_where_it_is(
    open_tab: OpenTab, stand_in: StandIn, view: str
) -> None:
    page = show(open_tab(stand_in.url), view)
    names = page.evaluate("measured.mark()")
    assert names, "the view has controls"
    seen = tab_through(page, len(names))
    assert [name for number, name in enumerate(names) if number not in seen] == []
    assert [names[number] for number, visible in seen.items() if not visible] == []


def tab_through(page: Page, count: int) -> dict[int, bool]:
    """Press Tab until all controls had the focus: which had it, and whether that shows."""
    seen: dict[int, bool] = {}
    for _ in range(min(_MOST_TABS, 2 * count + 10)):
        page.keyboard.press("Tab")
        focused = page.evaluate("measured.focused()")
        if focused is not None and focused["number"] >= 0:
            seen.setdefault(focused["number"], focused["seen"])
        if len(seen) == count:
            break
    return seen


@pytest.mark.parametrize(
    ("keys", "view"),
    [
        *((f"g{view[0]}", f"#{view}") for view in ("jobs", "batches", "workers")),
        ("gh", "#webhooks"),
        ("gp", "#playground"),
    ],
)
def test_two_keys_open_a_view(open_tab: OpenTab, stand_in: StandIn, keys: str, view: str) -> None:
    page = show(open_tab(stand_in.url), "fleet")
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_url(f"**/{view}*")


def test_slash_focuses_the_filter_and_a_question_mark_shows_the_keys(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    page = show(open_tab(stand_in.url), "jobs")
    page.keyboard.press("/")
    filter_field = page.locator("input[type=search]").first
    expect(filter_field).to_be_focused()
    filter_field.blur()
    page.keyboard.press("?")
    help_dialog = page.locator("dialog[open]")
    expect(help_dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(help_dialog).to_have_count(0)


def test_the_drawer_of_a_job_opens_and_closes_with_the_keyboard(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    page = show(open_tab(stand_in.url), "jobs")
    row = page.locator("[data-job]").first
    row.locator("a, button").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    focused = page.evaluate("document.activeElement.closest('[data-job]') !== null")
    assert focused, "the focus is back where it was"


def test_the_verdict_is_read_out_when_it_changes(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "fleet")
    verdict = page.locator("#verdict")
    expect(verdict).to_have_role("status")
    stand_in.show(SCENES["incident"]())
    expect(verdict).to_contain_text("w-3 lost")
    expect(verdict).to_have_attribute("data-level", "problem")
