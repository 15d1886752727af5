"""The page's views and their dialogs, and how a test gets there."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.browser import Tab
from tests.page.jobs import FAILED

VIEWS = {
    "fleet": "#fleet",
    "jobs": "#jobs",
    "a job": f"#jobs?job={FAILED}",
    "workers": "#workers",
    "batches": "#batches",
    "webhooks": "#webhooks",
    "playground": "#playground",
    "keys": "#keys",
}
"""By name: the address."""
LEVELS = re.compile("ok|warning|problem")


def show(tab: Tab, view: str) -> Page:
    """Open a view and wait until its figures are there."""
    page = tab.page
    page.goto(f"{tab.url}/{VIEWS[view]}")
    expect(page.locator("#verdict")).to_have_attribute("data-level", LEVELS)
    if view == "a job":
        expect(page.locator("dialog[open]")).to_contain_text(FAILED[:12])
    page.evaluate("document.fonts.ready.then(() => true)")
    return page


def sign_in(page: Page, key: str) -> None:
    """Answer the question for a key."""
    page.get_by_role("textbox", name="API key").fill(key)
    page.keyboard.press("Enter")
