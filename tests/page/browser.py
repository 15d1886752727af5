"""A headless Chromium, and pages that collect what goes wrong in them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",  # the tests' own pages, also as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--font-render-hinting=none",  # the same widths on every machine
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # names of pages that are not the gateway's
)
_DEADLINE_MS = 20_000
expect.set_options(timeout=_DEADLINE_MS)
MEASURE = Path(__file__).parent / "measure.js"


def executable(playwright: Playwright) -> str | None:
    """The browser: $CHROMIUM, the system's, or the one that Playwright has downloaded."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    return found or (own if Path(own).exists() else None)


@contextmanager
def launched() -> Iterator[Browser | None]:
    """A running browser; None where there is none."""
    with sync_playwright() as playwright:
        path = executable(playwright)
        if path is None:
            yield None
            return
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page in a context of its own (own storage), and its faults.

    Playwright's `wait_for_function` does not work in it: the page's policy has no `unsafe-eval`.

    A fault is a message on the console at the level of an error (a breach of the
    Content-Security-Policy is one), an exception, or a request to another host than the gateway's.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1280,
        height: int = 720,
        scheme: str = "light",
        scale: float = 1,
    ) -> None:
        self.url = url
        self.faults: list[str] = []
        self._expected: list[str] = []
        self._host = urlsplit(url).netloc
        self._context = browser.new_context(
            base_url=url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            device_scale_factor=scale,
            locale="en-GB",
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        self._context.set_default_timeout(_DEADLINE_MS)
        self._context.add_init_script(path=MEASURE)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", self._on_request)

    def expect(self, pattern: str) -> None:
        """Faults that match this regular expression are part of the test."""
        self._expected.append(pattern)

    def unexpected(self) -> list[str]:
        """The faults that no pattern of `expect` matches."""
        return [
            fault
            for fault in self.faults
            if not any(re.search(pattern, fault) for pattern in self._expected)
        ]

    def close(self) -> None:
        """Close the page and forget its storage."""
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self._host:
            self.faults.append(f"request to another host: {request.url}")
