"""The changes that an operator makes on the page: each asks first, then sends the right call."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.page import jobs as made_up
from tests.page.conftest import OpenTab
from tests.page.overviews import incident
from tests.page.stand_in import StandIn
from tests.page.views import show


def question(page: Page) -> Locator:
    """The dialog that asks before a change."""
    dialog = page.locator("dialog.question[open]")
    expect(dialog).to_be_visible()
    return dialog


def test_a_pool_is_paused_with_a_reason(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "fleet")
    page.get_by_role("button", name="Pause qwen").click()
    asked = question(page)
    asked.get_by_label("Reason").fill("an upgrade")
    assert stand_in.calls == []
    asked.get_by_role("button", name="Pause", exact=True).click()
    expect(asked).to_have_count(0)
    assert stand_in.calls == [("POST", "/admin/pools/qwen/pause", {"reason": "an upgrade"})]


def test_a_worker_is_drained_from_the_incident(open_tab: OpenTab, stand_in: StandIn) -> None:
    stand_in.show(incident())
    page = show(open_tab(stand_in.url), "fleet")
    page.locator("#problems").get_by_role("button", name="Drain w-3").click()
    question(page).get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("w-3")
    assert stand_in.calls == [("POST", "/admin/workers/w-3/drain", {})]


def test_a_question_that_is_closed_changes_nothing(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "fleet")
    page.get_by_role("button", name="Drain w-1").click()
    question(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert stand_in.calls == []


def test_jobs_are_counted_before_all_that_match_are_cancelled(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    page = show(open_tab(stand_in.url), "jobs")
    page.locator("input[type=search]").fill("state:queued model:qwen3-8b")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#jobs?filter=state:queued+model:qwen3-8b")
    page.get_by_role("button", name="Cancel matching").click()
    asked = question(page)
    expect(asked).to_contain_text("3 jobs match")
    asked.get_by_label("Reason").fill("sent by mistake")
    asked.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("3 of 3 jobs")
    same = {"filter": "state:queued model:qwen3-8b"}
    assert stand_in.calls == [
        ("POST", "/admin/jobs/cancel", same | {"dry_run": True}),
        ("POST", "/admin/jobs/cancel", same | {"dry_run": False, "reason": "sent by mistake"}),
    ]


def test_a_job_is_retried_with_an_edited_body(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = open_tab(stand_in.url).page
    page.goto(f"{stand_in.url}/#jobs?job={made_up.FAILED}")
    page.get_by_role("button", name="Retry with edited body").click()
    body = page.get_by_role("textbox", name="Body")
    expect(body).to_have_value(re.compile("model"))
    body.fill('{"model": "other", ')
    page.get_by_role("button", name="Submit as a new job").click()
    expect(page.locator("dialog.question")).to_contain_text("no JSON")
    body.fill('{"model": "other"}')
    page.get_by_role("button", name="Submit as a new job").click()
    expect(page.locator("dialog.question")).to_have_count(0)
    path = f"/jobs/{made_up.FAILED}/retry"
    assert stand_in.calls == [("POST", path, {"body": {"model": "other"}})]


def test_data_that_are_old_are_shown_as_old(open_tab: OpenTab, stand_in: StandIn) -> None:
    tab = open_tab(stand_in.url)
    tab.expect("ERR_FAILED")
    page = show(tab, "fleet")
    page.route("**/admin/stream", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new CustomEvent('key-changed'))")
    expect(page.locator("#verdict")).to_contain_text("No data for")
    expect(page.locator("body")).to_have_class(re.compile("stale"))
