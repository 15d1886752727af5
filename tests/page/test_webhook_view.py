"""The view of webhooks: made-up endpoints and deliveries, and real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from openai import OpenAI
from playwright.sync_api import Locator, Page, expect

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, free_port
from tests.harness.waiting import wait_for
from tests.page.axe import violations
from tests.page.conftest import OpenTab
from tests.page.sample_webhooks import LOST, SEARCH
from tests.page.stand_in import StandIn
from tests.page.views import show, sign_in

KEY = "s3cret"
PANEL = "[data-panel=webhooks]"
EVENT = "job.completed"


def card(page: Page, name: str) -> Locator:
    return page.locator(f"{PANEL} article").filter(has_text=name)


def test_endpoints_and_what_was_sent_to_them(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "webhooks")
    search = card(page, "search")
    expect(search).to_contain_text("https://search.example.com/hooks")
    expect(search).to_contain_text("batch.completed, batch.failed")
    first, second = (search.locator("li").nth(number) for number in (0, 1))
    expect(first).to_contain_text(
        re.compile(r"job.failed.*pending.*no answer within 15 s, 2 tries, next \d")
    )
    expect(second).to_contain_text(re.compile(r"batch.completed.*delivered.*204, 1 try"))
    expect(card(page, "old")).to_contain_text("disabled: it has answered 410 (Gone)")


def test_test_and_resend(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "webhooks")
    search, path = card(page, "search"), f"/v1/webhook_endpoints/{SEARCH}"
    search.get_by_role("button", name="Resend").first.click()
    expect(page.locator("#notice")).to_contain_text("It is sent again.")
    search.get_by_role("button", name="Test").click()
    wait_for(lambda: len(stand_in.calls) == 2, "both calls")
    assert stand_in.calls == [
        ("POST", f"{path}/deliveries/{LOST}/resend", None),
        ("POST", f"{path}/test", {"event_type": EVENT}),
    ]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, {"data": []}, "flotilla webhook create URL"),
        (503, {"error": {"message": "Redis is away."}}, "Redis is away."),
    ],
)
def test_what_the_view_says_without_endpoints(
    open_tab: OpenTab, stand_in: StandIn, status: int, body: object, text: str
) -> None:
    tab = open_tab(stand_in.url)
    tab.expect("503")
    endpoints = re.compile("/v1/webhook_endpoints$")
    tab.page.route(endpoints, lambda route: route.fulfill(status=status, json=body))
    page = show(tab, "webhooks")
    expect(page.locator(f"{PANEL} .note")).to_contain_text(text)
    assert violations(page) == []


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway that needs a key, maintenance and a worker."""
    folder = tmp_path_factory.mktemp("fleet")
    server = RedisServer(folder)
    server.start()
    stack = Stack(server.url, folder)
    try:
        stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
        stack.maintenance(webhook_allow="127.0.0.1")
        yield stack.gateway(webhook_allow="127.0.0.1", api_keys=f"team:{KEY}")
    finally:
        stack.close()
        server.stop()


def test_a_receiver_that_is_not_there(open_tab: OpenTab, fleet: Process) -> None:
    tab = open_tab(fleet.url)
    tab.expect("400|401|403")
    page = tab.page
    page.goto(f"{fleet.url}/#webhooks")
    sign_in(page, KEY)
    expect(page.locator(f"{PANEL} .note")).to_contain_text("no endpoint of this key")
    with OpenAI(base_url=f"{fleet.url}/v1", api_key=KEY, max_retries=0) as client:
        url = f"http://127.0.0.1:{free_port()}/"
        types: list[object] = [EVENT]
        client.webhooks.create(name="ci", url=url, event_types=types)  # type: ignore[arg-type]
    body = {"model": "simulated", "messages": [{"role": "user", "content": "x"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    job = http.post(f"{fleet.url}/jobs", json={"body": body}, headers=headers).json()["id"]
    row = card(page, "ci").locator("li")
    expect(row).to_contain_text(
        re.compile(rf"{EVENT}{job}pending.*no connection.*next \d"), timeout=30_000
    )
    card(page, "ci").get_by_role("button", name="Test").click()
    expect(page.locator("#notice")).to_contain_text("The endpoint has not answered")
