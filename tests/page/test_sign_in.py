"""The question for a key: asked when the key in use is refused, and only then."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.page.conftest import OpenTab
from tests.page.stand_in import StandIn
from tests.page.views import sign_in


def test_a_late_refusal_of_another_key_asks_nothing(open_tab: OpenTab, stand_in: StandIn) -> None:
    """The list of models is asked for without a key, and refused after the right one was given."""
    tab = open_tab(stand_in.url)
    tab.expect("401")
    page = tab.page
    late: dict[str, Route] = {}

    def gateway(route: Route) -> None:
        key = route.request.headers.get("authorization", "").removeprefix("Bearer ")
        if key == "right":
            route.continue_()
        elif route.request.url.endswith("/v1/models"):
            late[key] = route
        else:
            route.fulfill(status=401, json={})

    page.route(re.compile("/admin/stream|/v1/models"), gateway)
    page.goto(f"{stand_in.url}/#playground")
    expect(page.get_by_role("alert")).to_have_count(0)
    sign_in(page, "wrong")
    expect(page.get_by_role("alert")).to_contain_text("This key is unknown")
    sign_in(page, "right")
    expect(page.locator("#verdict")).to_have_attribute("data-level", "ok")
    page.evaluate(
        """document.addEventListener("key-needed", () => document.body.append("refused "))"""
    )
    for route in late.values():
        route.fulfill(status=401, json={})
    expect(page.locator("body")).to_contain_text("refused refused")
    expect(page.locator("dialog")).to_have_count(0)
    assert set(late) == {"", "wrong"}
