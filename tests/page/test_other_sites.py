"""What a page of another site can do to a gateway without keys, in a real browser: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATHS = (
    "/pause",
    "/sleep?level=2&mode=abort",
    "/reset_prefix_cache",
    "/admin/pools/simulated/pause",
)


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Iterator[Process]:
    stack = Stack(redis_url, tmp_path)
    try:
        gateway = stack.gateway()
        stack.worker()
        yield gateway
    finally:
        stack.close()


@pytest.fixture
def evil_site() -> Iterator[str]:
    """An empty page on http://evil.example; the browser takes that name for this machine's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://evil.example:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def paused(gateway: Process) -> bool:
    return bool(http.get(f"{gateway.url}/admin/pools/simulated").json()["paused"])


def refused(gateway: Process, code: str) -> float:
    return gateway.metric("flotilla_requests_refused_total", code=code)


def test_a_page_of_another_site_changes_nothing(
    gateway: Process, evil_site: str, page: Page
) -> None:
    page.goto(evil_site)
    for number, path in enumerate(PATHS, 1):
        page.evaluate(
            "(url) => fetch(url, { method: 'POST', mode: 'no-cors', body: '{}' })",
            gateway.url + path,
        )
        wait_for(lambda n=number: refused(gateway, "foreign_site") == n, "it has arrived")
    page.evaluate(
        """(url) => {
          const form = document.createElement("form");
          Object.assign(form, { action: url, method: "POST" });
          document.body.append(form);
          form.submit();
        }""",
        gateway.url + "/pause",
    )
    wait_for(lambda: refused(gateway, "foreign_site") == len(PATHS) + 1, "the form has arrived")
    assert not paused(gateway)


def test_nor_does_one_whose_name_is_the_gateways_address(gateway: Process, page: Page) -> None:
    answer = page.goto(gateway.url.replace("127.0.0.1", "evil.example") + "/admin/overview")
    assert answer is not None
    assert answer.json()["error"]["code"] == "unknown_host"
    for path in PATHS:
        status = page.evaluate(
            "(path) => fetch(path, { method: 'POST' }).then((a) => a.status)", path
        )
        assert status == 403
    assert not paused(gateway)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_gateways_own_page_does(gateway: Process, page: Page, name: str) -> None:
    page.goto(gateway.url.replace("127.0.0.1", name))
    ask = "(path) => fetch(path, { method: 'POST' }).then((a) => a.status)"
    assert page.evaluate(ask, "/pause") == 200
    assert paused(gateway)
    assert page.evaluate(ask, "/resume") == 200
    assert not paused(gateway)
