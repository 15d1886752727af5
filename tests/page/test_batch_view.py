"""The view of batches: made-up ones in each status, and one of a real fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from playwright.sync_api import Locator, Page, Route, expect

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.page.axe import violations
from tests.page.conftest import OpenTab
from tests.page.sample_batches import COMPLETED, FAILED, RUNNING, batch
from tests.page.stand_in import StandIn
from tests.page.views import show, sign_in

KEY = "s3cret"
NOTE = "[data-panel=batches] .note"


def row(page: Page, batch_id: str) -> Locator:
    return page.locator(f'[data-batch="{batch_id}"]')


def test_a_batch_shows_how_far_it_is_and_links_to_its_lines(
    open_tab: OpenTab, stand_in: StandIn
) -> None:
    page = show(open_tab(stand_in.url), "batches")
    running = row(page, RUNNING)
    expect(running).to_contain_text(re.compile(r"answered of 1,000\s*812\s*failed\s*3"))
    expect(running.get_by_role("link", name="Output so far")).to_have_attribute(
        "href", f"{stand_in.url}/v1/batches/{RUNNING}/output"
    )
    ended = row(page, COMPLETED)
    expect(ended).to_contain_text(re.compile(r"took\s*5 min 0 s"))
    expect(ended.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(ended.get_by_role("link", name="Errors")).to_have_attribute(
        "href", f"{stand_in.url}/v1/files/file-{'2' * 24}/content"
    )
    expect(row(page, FAILED)).to_contain_text("Line 3: This line is no JSON.")
    expect(row(page, FAILED)).to_contain_text(f"… and 2 more: flotilla batch show {FAILED}")


def test_a_batch_is_cancelled_after_a_question(open_tab: OpenTab, stand_in: StandIn) -> None:
    page = show(open_tab(stand_in.url), "batches")
    page.get_by_role("button", name=f"Cancel {RUNNING}").click()
    assert stand_in.calls == []
    page.get_by_role("button", name="Cancel the batch").click()
    expect(page.locator("#notice")).to_contain_text("is cancelled")
    assert stand_in.calls == [("POST", f"/v1/batches/{RUNNING}/cancel", None)]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, {"data": [], "has_more": False}, "flotilla batch run in.jsonl -o out.jsonl"),
        (200, {"data": [batch(RUNNING, "in_progress")], "has_more": True}, "flotilla batch ls"),
        (501, {"error": {"message": "Set FLOTILLA_STORAGE_URL."}}, "Set FLOTILLA_STORAGE_URL."),
    ],
)
def test_what_the_view_says_of_the_list(
    open_tab: OpenTab, stand_in: StandIn, status: int, body: object, text: str
) -> None:
    tab = open_tab(stand_in.url)
    tab.expect("501")
    tab.page.route("**/v1/batches?*", lambda route: route.fulfill(status=status, json=body))
    page = show(tab, "batches")
    expect(page.locator(NOTE)).to_contain_text(text)
    assert violations(page) == []


def test_progress_comes_by_itself(open_tab: OpenTab, stand_in: StandIn) -> None:
    tab = open_tab(stand_in.url)
    answered = iter(range(100, 1000, 100))

    def answer(route: Route) -> None:
        counts = {"total": 1000, "completed": next(answered), "failed": 0}
        found = batch(RUNNING, "in_progress", request_counts=counts)
        route.fulfill(json={"data": [found], "has_more": False})

    tab.page.route("**/v1/batches?*", answer)
    page = show(tab, "batches")
    expect(row(page, RUNNING)).to_contain_text(re.compile(r"answered of 1,000\s*100"))
    expect(row(page, RUNNING)).to_contain_text(re.compile(r"answered of 1,000\s*200"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway that needs a key, with a storage, maintenance and a worker."""
    folder = tmp_path_factory.mktemp("fleet")
    server = RedisServer(folder)
    server.start()
    stack = Stack(server.url, folder)
    try:
        storage = str(folder / "files")
        stack.worker(sim_step_ms=20, sim_step_us_per_seq=0, sim_max_num_seqs=4)
        stack.maintenance(storage_url=storage)
        yield stack.gateway(storage_url=storage, api_keys=f"team:{KEY}")
    finally:
        stack.close()
        server.stop()


def made(client: OpenAI, n_lines: int, max_tokens: int) -> str:
    """A new batch."""
    url = "/v1/chat/completions"
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "simulated", "messages": messages, "max_tokens": max_tokens}
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": url, "body": body})
        for n in range(n_lines)
    ]
    data = "\n".join(lines).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    found = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    return found.id


def test_a_real_batch_from_its_start_to_its_output(
    open_tab: OpenTab, fleet: Process, tmp_path: Path
) -> None:
    tab = open_tab(fleet.url)
    tab.expect("401|403")
    page = tab.page
    page.goto(f"{fleet.url}/#batches")
    sign_in(page, KEY)
    expect(page.locator(NOTE)).to_contain_text("no batch of this key")
    with OpenAI(base_url=f"{fleet.url}/v1", api_key=KEY, max_retries=0) as client:
        short, long = made(client, 5, 2), made(client, 2000, 2000)
    expect(row(page, short)).to_contain_text("completed", timeout=60_000)
    with page.expect_download() as download:  # with a key: a plain link would get 401
        row(page, short).get_by_role("link", name="Output").click()
    download.value.save_as(tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5
    expect(row(page, long)).to_contain_text("in_progress", timeout=60_000)
    page.get_by_role("button", name=f"Cancel {long}").click()
    page.get_by_role("button", name="Cancel the batch").click()
    expect(row(page, long)).to_contain_text("cancelled", timeout=60_000)
