"""The view of keys: made-up ones, and those of a real gateway from their making to their end."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for
from tests.page.axe import violations
from tests.page.conftest import OpenTab
from tests.page.sample_keys import CI, EVIL, NIGHTLY, OLD, SECRET, tenant, used
from tests.page.stand_in import StandIn
from tests.page.views import show, sign_in

OPERATOR, TENANT = "adm1n", "s3cret"
PATH = "/admin/keys"
DIALOG = "dialog[open]"
USE = "[data-panel=use]"


def key_row(page: Page, key_id: str) -> Locator:
    return page.locator(f'[data-key="{key_id}"]')


def tenant_card(page: Page, tenant: str) -> Locator:
    return page.locator(f'[data-tenant="{tenant}"]')


def press(page: Page, name: str) -> None:
    """A button of the dialog."""
    page.locator(DIALOG).get_by_role("button", name=name, exact=True).click()


def test_tenants_and_keys_show_what_is_used_of_their_limits(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    page = show(open_tab(stand_in.url), "keys")
    search = tenant_card(page, "search")
    expect(search).to_contain_text("1.2M of 5.0M tokens today")
    expect(search).to_contain_text("600 requests per minute")
    assert search.locator(".failure").all_inner_texts() == ["950.0k of 1.0M tokens today"]
    expect(key_row(page, CI)).to_contain_text("flk_AbCd… · infer, jobs, priority · all models")
    expect(key_row(page, CI).locator(".pill")).to_be_hidden()
    expect(key_row(page, OLD)).to_contain_text("expired")
    expect(tenant_card(page, "ops")).to_contain_text(re.compile("operator.*no limits"))


def test_of_many_tenants_those_are_shown_whose_name_is_typed(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    tab = open_tab(stand_in.url)
    many = [tenant(f"tenant-{number}", used(0, 0)) for number in range(1000)]
    tab.page.route("**/admin/tenants", lambda route: route.fulfill(json={"data": many}))
    page = show(tab, "keys")
    expect(page.locator("[data-tenant]")).to_have_count(200)
    expect(page.locator("[data-panel=keys] .note")).to_contain_text("type a part of a name")
    page.get_by_role("searchbox", name="Only tenants with").fill("-99")
    expect(page.locator("[data-tenant]")).to_have_count(11)


def test_names_of_an_attacker_are_text(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "keys")
    expect(key_row(page, NIGHTLY).locator("b")).to_have_text(EVIL)
    expect(page.locator("[data-panel=changes]")).to_contain_text(EVIL)
    page.get_by_role("button", name="By model", exact=True).click()
    expect(page.locator(USE).get_by_role("rowheader", name=EVIL)).to_be_visible()
    page.get_by_role("button", name=f"Revoke {NIGHTLY}").click()
    expect(page.locator(DIALOG)).to_contain_text(EVIL)
    assert page.locator("main img, dialog img, main script").count() == 0
    assert page.title() == "Flotilla"


def test_a_new_key_and_its_secret(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "keys")
    page.get_by_role("button", name="New key of search").click()
    assert violations(page) == []
    expect(page.locator("[name=tenant]")).to_have_value("search")
    for name, value in (("name", "ci"), ("models", "a, b,"), ("tokens_per_day", "500")):
        page.locator(f"[name={name}]").fill(value)
    press(page, "Make the key")
    expect(page.locator(DIALOG)).to_contain_text("not again")
    expect(page.locator(".secret")).to_have_text(SECRET)
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
    assert violations(page) == []
    page.mouse.click(2, 2)  # beside it: a secret is not lost by that
    expect(page.locator(".secret")).to_be_visible()
    press(page, "Close")
    expect(page.locator(".secret")).to_have_count(0)
    assert SECRET not in page.content()
    (_, path, sent) = stand_in.calls[0]
    assert (path, sent["tenant"], sent["models"]) == (PATH, "search", ["a", "b"])
    assert (sent["scopes"], sent["limits"]["tokens_per_day"]) == (["infer", "jobs"], 500)
    assert "expires_at" not in sent


def test_what_changes_a_key_asks_first(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "keys")
    for name in (f"Limits {CI}", f"Rotate {CI}", f"Revoke {CI}", "Limits of support"):
        page.get_by_role("button", name=name).click()
        press(page, "Do nothing")
    assert stand_in.calls == []
    page.get_by_role("button", name=f"Revoke {CI}").click()
    page.locator("[name=reason]").fill("leaked")
    press(page, "Revoke")
    expect(page.locator("#notice")).to_contain_text("ci is revoked")
    page.get_by_role("button", name="Limits of support").click()
    expect(page.locator("[name=tokens_per_day]")).to_have_value("1000000")
    page.locator("[name=tokens_per_day]").fill("")
    page.locator("[name=concurrent_requests]").fill("8")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("support has these limits")
    revoked, limited = stand_in.calls
    assert revoked == ("DELETE", f"{PATH}/{CI}", {"reason": "leaked"})
    assert limited[:2] == ("PUT", "/admin/tenants/support/limits")
    assert {name: n for name, n in limited[2].items() if n} == {"concurrent_requests": 8}


def test_use_is_added_up_by_what_is_chosen(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "keys")
    use = page.locator(USE)
    expect(use.get_by_role("rowheader").first).to_have_text("2026-09-21")
    by = use.get_by_role("button", name="By day and tenant")
    by.click()
    expect(use.get_by_role("columnheader").nth(1)).to_have_text("Tenant")
    expect(by).to_have_attribute("aria-pressed", "true")
    expect(use.get_by_role("link", name="CSV")).to_have_attribute(
        "href", f"{stand_in.url}/admin/usage?by=day,tenant&format=csv"
    )
    assert page.evaluate("[...measured.cutOff(), ...measured.mistakes()]") == []


@pytest.mark.parametrize("panel", ["keys", "use", "changes"])
def test_what_can_not_be_read_is_said(open_tab: OpenTab, stand_in: StandIn, panel: str) -> None:
    tab = open_tab(stand_in.url)
    tab.expect("503")
    path = {"keys": "tenants", "use": "usage", "changes": "audit"}[panel]
    error = {"error": {"message": "Redis is away."}}
    tab.page.route(f"**/admin/{path}*", lambda route: route.fulfill(status=503, json=error))
    page = show(tab, "keys")
    expect(page.locator(f"[data-panel={panel}] .note")).to_contain_text("Redis is away.")
    assert violations(page) == []


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway that needs a key and keeps others, maintenance and a worker."""
    folder = tmp_path_factory.mktemp("fleet")
    server = RedisServer(folder)
    server.start()
    stack = Stack(server.url, folder)
    try:
        stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
        stack.maintenance()
        yield stack.gateway(api_keys=f"team:{TENANT}", admin_keys=f"ops:{OPERATOR}")
    finally:
        stack.close()
        server.stop()


def chat(gateway: Process, secret: str) -> httpx.Response:
    body = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
    headers = {"authorization": f"Bearer {secret}"}
    url = f"{gateway.url}/v1/chat/completions"
    return http.post(url, json=body, headers=headers, timeout=60)


def signed_in(open_tab: OpenTab, fleet: Process, secret: str) -> Page:
    """The view as this key sees it."""
    tab = open_tab(fleet.url)
    tab.expect("401|403|400")
    tab.page.goto(f"{fleet.url}/#keys")
    sign_in(tab.page, secret)
    return tab.page


def taken_secret(page: Page) -> str:
    secret = page.locator(".secret").inner_text()
    press(page, "Close")
    return secret


def test_a_real_key_from_its_making_to_its_end(
    open_tab: OpenTab, fleet: Process, tmp_path: Path
) -> None:
    page = signed_in(open_tab, fleet, OPERATOR)
    page.get_by_role("button", name="New key …", exact=True).click()
    page.locator("[name=tenant]").fill("no such name")
    press(page, "Make the key")
    expect(page.locator(f"{DIALOG} .failure")).to_contain_text("tenant")
    page.locator("[name=tenant]").fill("shop")
    page.locator("[name=name]").fill(EVIL[:64])
    page.locator("[name=tokens_per_day]").fill("100")
    press(page, "Make the key")
    secret = taken_secret(page)
    row = tenant_card(page, "shop").locator("[data-key]")
    expect(row.locator("b")).to_have_text(EVIL[:64])
    # Before that, 429 may be for what is reserved for calls whose use isn't counted yet.
    wait_for(lambda: "budget_exceeded" in chat(fleet, secret).text, "the budget is spent", 30)
    refresh = page.locator("[data-panel=keys]").get_by_role("button", name="Refresh")
    refresh.click()
    expect(row.locator(".failure")).to_contain_text(re.compile(r"\d+ of 100 tokens today"))
    row.get_by_role("button", name="Limits").click()
    page.locator("[name=tokens_per_day]").fill("")
    press(page, "Set limits")
    expect(row).to_contain_text("no limits")
    assert chat(fleet, secret).status_code == 200
    row.get_by_role("button", name="Rotate").click()
    press(page, "Rotate")
    after = taken_secret(page)
    assert (chat(fleet, secret).status_code, chat(fleet, after).status_code) == (401, 200)
    row.get_by_role("button", name="Revoke").click()
    page.locator("[name=reason]").fill("the shop is closed")
    press(page, "Revoke")
    expect(row).to_have_count(0)
    assert chat(fleet, after).status_code == 401
    expect(page.locator("[data-panel=changes] li").first).to_contain_text(
        re.compile("key.revoked.*of shop by ops: the shop is closed")
    )
    page.get_by_role("button", name="By tenant", exact=True).click()
    expect(page.locator(USE).get_by_role("rowheader", name="shop")).to_be_visible()
    with page.expect_download() as download:
        page.locator(USE).get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "usage.csv")
    with (tmp_path / "usage.csv").open() as file:
        assert "shop" in {each["tenant"] for each in csv.DictReader(file)}


def test_a_tenants_key_sees_its_own_use_and_its_limits(open_tab: OpenTab, fleet: Process) -> None:
    assert chat(fleet, TENANT).status_code == 200
    operator = {"authorization": f"Bearer {OPERATOR}"}

    def is_counted() -> bool:
        own = {"authorization": f"Bearer {TENANT}"}
        found = http.get(f"{fleet.url}/v1/usage", headers=own).json()
        return bool(found["total"]["jobs"])

    wait_for(is_counted, "the job is in the sums", 30)
    url = f"{fleet.url}/admin/tenants/team/limits"
    assert http.put(url, json={"tokens_per_month": 5000}, headers=operator).status_code == 200
    page = signed_in(open_tab, fleet, TENANT)
    expect(page.locator("[data-panel=keys] .note")).to_contain_text("admin:read")
    expect(page.get_by_role("button", name="New key")).to_have_count(0)
    expect(page.locator("[data-panel=changes]")).to_have_count(0)
    use = page.locator(USE)
    expect(use).to_contain_text(re.compile(r"This tenant:.*[1-9]\d* of 5,000 tokens this month"))
    use.get_by_role("button", name="By model", exact=True).click()
    expect(use.get_by_role("rowheader", name="simulated")).to_be_visible()
    use.get_by_role("button", name="By day and key").click()
    expect(use.get_by_role("columnheader").nth(1)).to_have_text("Key")


def test_an_operator_who_may_only_read_is_told(open_tab: OpenTab, fleet: Process) -> None:
    headers = {"authorization": f"Bearer {OPERATOR}"}
    wanted = {"tenant": "readers", "scopes": ["admin:read"]}
    made = http.post(f"{fleet.url}{PATH}", json=wanted, headers=headers).json()
    page = signed_in(open_tab, fleet, made["secret"])
    page.get_by_role("button", name=f"Revoke {made['id']}").click()
    press(page, "Revoke")
    expect(page.locator(f"{DIALOG} .failure")).to_contain_text("admin:write")
    press(page, "Do nothing")
    expect(key_row(page, made["id"])).to_be_visible()
