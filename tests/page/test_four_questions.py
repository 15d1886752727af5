"""Four questions of an operator, each answered on the page and on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.harness.client import http
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for
from tests.page.browser import Tab
from tests.page.conftest import OpenTab
from tests.page.troubled_fleet import OPERATOR, TroubledFleet, headers, post_job
from tests.page.views import LEVELS, sign_in

POOL = "simulated"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubledFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    server = RedisServer(folder)
    server.start()
    stack = Stack(server.url, folder)
    try:
        yield TroubledFleet.start(stack)
    finally:
        stack.close()
        server.stop()


@pytest.fixture
def page(open_tab: OpenTab, fleet: TroubledFleet) -> Page:
    """The page in a browser that has just been opened, after the key was typed in."""
    tab: Tab = open_tab(fleet.gateway.url)
    tab.expect("401")
    tab.page.goto(tab.url)
    sign_in(tab.page, OPERATOR)
    expect(tab.page.locator("#verdict")).to_have_attribute("data-level", LEVELS)
    return tab.page


def filtered(page: Page, text: str) -> None:
    """Open the jobs and type a filter, with the keyboard."""
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def test_why_does_a_job_wait_on_the_page(page: Page, fleet: TroubledFleet) -> None:
    filtered(page, "state:queued")
    page.locator(f'[data-job="{fleet.waiting}"]').get_by_role("link").first.click()
    why = page.locator("dialog[open] [data-why]")
    expect(why).to_contain_text(re.compile("slot|busy|wait", re.IGNORECASE))
    expect(page).to_have_url(re.compile(rf"#jobs\?.*{fleet.waiting}"))


def test_why_does_a_job_wait_on_the_command_line(fleet: TroubledFleet) -> None:
    assert fleet.waiting in fleet.run("jobs", "ls", "state:queued", "--json")
    assert re.search("slot|busy|wait", fleet.run("jobs", "why", fleet.waiting))
    why = json.loads(fleet.run("jobs", "why", fleet.waiting, "--json"))
    assert why["sentence"]


def test_which_worker_is_unhealthy_on_the_page(page: Page, fleet: TroubledFleet) -> None:
    expect(page.locator("#verdict")).to_have_attribute("data-level", re.compile("problem|warning"))
    expect(page.locator("#verdict")).to_contain_text(fleet.lost)
    row = page.locator(f'[data-worker="{fleet.lost}"]').first
    expect(row).to_have_attribute("data-state", "lost")
    expect(row).to_contain_text(re.compile("lost", re.IGNORECASE))
    healthy = page.locator(f'[data-worker="{fleet.healthy}"]').first
    expect(healthy).not_to_have_attribute("data-state", "lost")


def test_which_worker_is_unhealthy_on_the_command_line(fleet: TroubledFleet) -> None:
    text = fleet.run("workers", "ls")
    assert re.search(rf"^{fleet.lost} +lost\b", text, re.MULTILINE), text
    assert re.search(rf"^{fleet.healthy} +(busy|ready)\b", text, re.MULTILINE), text


def test_what_failed_in_the_last_hour_on_the_page(page: Page, fleet: TroubledFleet) -> None:
    filtered(page, "state:failed ended:1h")
    rows = page.locator("[data-job]")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-job", fleet.failed)
    expect(page).to_have_url(re.compile("#jobs\\?filter=state(:|%3A)failed"))


def test_what_failed_in_the_last_hour_on_the_command_line(fleet: TroubledFleet) -> None:
    found = json.loads(fleet.run("jobs", "ls", "state:failed", "ended:1h", "--json"))
    assert [job["id"] for job in found["data"]] == [fleet.failed]
    assert fleet.failed[:12] in fleet.run("jobs", "ls", "state:failed", "ended:1h")


def test_how_do_i_stop_intake_on_the_page(page: Page, fleet: TroubledFleet) -> None:
    queue = page.locator(f'[data-pool="{POOL}"]').first
    await_intake(fleet, accepted=True)
    queue.get_by_role("button", name=f"Pause {POOL}").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Refuse new requests").check()
    dialog.get_by_label("Reason").fill("an upgrade")
    dialog.get_by_role("button", name="Pause").click()
    expect(queue.get_by_role("button", name=f"Resume {POOL}")).to_be_visible()
    await_intake(fleet, accepted=False)
    queue.get_by_role("button", name=f"Resume {POOL}").click()
    if dialog.is_visible():
        dialog.get_by_role("button", name="Resume").click()
    expect(queue.get_by_role("button", name=f"Pause {POOL}")).to_be_visible()
    await_intake(fleet, accepted=True)


def test_how_do_i_stop_intake_on_the_command_line(fleet: TroubledFleet) -> None:
    await_intake(fleet, accepted=True)
    fleet.run("queue", "pause", POOL, "--intake")
    assert re.search("refused|stopped", fleet.run("queue", "ls"), re.IGNORECASE)
    await_intake(fleet, accepted=False)
    fleet.run("queue", "resume", POOL)
    await_intake(fleet, accepted=True)


def await_intake(fleet: TroubledFleet, *, accepted: bool) -> None:
    """Wait until a new request is a job (or is refused), as gateways read the switch every second.

    Jobs that are made meanwhile are cancelled.
    """
    wait_for(lambda: _accepts(fleet.gateway.url) is accepted, f"accepted: {accepted}", 10)


def _accepts(url: str) -> bool:
    answer = post_job(url, prompt="kept", max_tokens=3)
    if answer.status_code == 202:
        http.post(f"{url}/jobs/{answer.json()['id']}/cancel", headers=headers())
        return True
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "intake_stopped"
    return False
