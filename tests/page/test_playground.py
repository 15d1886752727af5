"""The playground against a real gateway: an answer survives a dropped connection."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer
from tests.page.conftest import OpenTab

_STEP_MS = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with one worker, whose answers take a while."""
    folder = tmp_path_factory.mktemp("playground")
    server = RedisServer(folder)
    server.start()
    stack = Stack(server.url, folder)
    try:
        gateway = stack.gateway()
        stack.worker(sim_step_ms=_STEP_MS, sim_step_us_per_seq=0)
        yield gateway.url
    finally:
        stack.close()
        server.stop()


@pytest.fixture
def page(open_tab: OpenTab, url: str) -> Page:
    tab = open_tab(url)
    tab.expect("ERR_ABORTED")
    tab.page.goto(f"{url}/#playground")
    expect(tab.page.get_by_label("Model", exact=True).first).to_have_value("simulated")
    return tab.page


def test_a_dropped_stream_is_resumed_without_a_gap(page: Page) -> None:
    expect(page.locator("textarea[name=prompt]")).to_be_focused()
    page.keyboard.press("Enter")
    answer = page.locator(".text").first
    expect(answer).to_contain_text("[simulated]", timeout=10_000)
    page.get_by_role("button", name="Drop connection").click()
    state = page.locator(".stream-state").first
    expect(state).to_contain_text("Resume continues behind them")
    page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("Complete.", timeout=20_000)
    stats = page.locator(".stats").first
    expect(stats).to_contain_text(re.compile("queue .*TTFT .*tok/s .*worker", re.DOTALL))
    job = stats.get_by_role("link").get_attribute("href").split("job=")[1]  # type: ignore[union-attr]
    whole = page.evaluate(f"fetch('jobs/{job}').then((each) => each.json())")
    assert answer.inner_text().strip() == whole["text"].strip()

    page.get_by_role("tab", name="Raw events").click()
    events = page.locator(".raw").first
    expect(events).to_contain_text("[DONE]")
    expect(events).to_contain_text("resumed with GET /jobs/")
    numbers = events.locator("li[data-event]").evaluate_all(
        "rows => rows.map((row) => Number(row.dataset.event))"
    )
    assert numbers == list(range(1, len(numbers) + 1))


def test_two_answers_come_side_by_side(page: Page) -> None:
    page.get_by_label("Compare two models").check()
    page.get_by_label("Second model", exact=True).select_option("simulated")
    page.get_by_label("Max tokens").fill("8")
    page.get_by_role("button", name="Send").click()
    for number in (0, 1):
        expect(page.locator(".stream-state").nth(number)).to_have_text("Complete.", timeout=15_000)
        expect(page.locator(".text").nth(number)).to_contain_text("[simulated]")


def test_the_request_is_shown_as_code(page: Page) -> None:
    page.locator("textarea[name=prompt]").fill('it\'s "here"')
    page.get_by_role("tab", name="Code").click()
    code = page.locator("pre:visible")
    expect(code).to_contain_text("curl -N")
    page.get_by_role("button", name="Python").click()
    expect(code).to_contain_text("from openai import OpenAI")
    page.get_by_role("button", name="Node").click()
    expect(code).to_contain_text('import OpenAI from "openai"')
    expect(code).to_contain_text("it's")
