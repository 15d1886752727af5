"""Walks through the tour: types its commands, follows it in a browser, takes the pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.page.browser import Tab
from tests.page.tour.document import DOCUMENT, Minute, minutes
from tests.page.tour.terminals import Terminals

POOL = "simulated"
WORKERS = 2
Step = Callable[[Minute], str]


class Walk:
    """One walk; `run` returns what the commands have printed, by minute."""

    def __init__(self, browser: Browser, folder: Path, pictures: Path) -> None:
        """`folder`: empty, for the fleet. `pictures`: where they are written."""
        self._browser = browser
        self._pictures = pictures
        self.taken: list[str] = []
        self._terminals = Terminals(folder)
        self._tabs: list[Tab] = []
        self._steps: list[Step] = [
            self._start,
            self._open,
            self._ask,
            self._sdk,
            self._submit,
            self._load,
            self._kill,
            self._stop,
            self._story,
            self._failed,
            self._last,
        ]

    def run(self) -> dict[str, str]:
        """Walk. Raises what went wrong; the fleet is stopped in any case."""
        printed: dict[str, str] = {}
        found = minutes(DOCUMENT.read_text())
        assert len(found) == len(self._steps), [each.title for each in found]
        try:
            for minute, step in zip(found, self._steps, strict=True):
                printed[minute.title] = step(minute)
            assert [fault for tab in self._tabs for fault in tab.unexpected()] == []
        finally:
            for tab in self._tabs:
                tab.close()
            self._terminals.close()
        return printed

    def _start(self, minute: Minute) -> str:
        up, doctor = minute.commands
        self._terminals.start(up)
        output = self._terminals.run(doctor)
        assert "FAIL" not in output, output
        return output

    def _open(self, _: Minute) -> str:
        page = self._tab()
        expect(page.locator("[data-worker]")).to_have_count(WORKERS)
        expect(page.locator("#verdict")).to_have_attribute("data-level", "ok")
        expect(page.get_by_text(re.compile("simulated", re.IGNORECASE)).first).to_be_visible()
        self._picture(page, "01-fleet")
        return ""

    def _ask(self, _: Minute) -> str:
        page = self._page
        self._keys("gp")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("[simulated]").first).to_be_visible()
        expect(page.get_by_text(re.compile("TTFT")).first).to_be_visible()
        self._picture(page, "02-playground")
        page.get_by_role("tab", name="Code").click()
        expect(page.get_by_text("curl").first).to_be_visible()
        self._picture(page, "03-code")
        return ""

    def _sdk(self, minute: Minute) -> str:
        program, jobs = map(self._terminals.run, minute.commands)
        assert "[simulated]" in program
        assert "completed" in jobs
        return program + jobs

    def _submit(self, minute: Minute) -> str:
        first, later = map(self._terminals.run, minute.commands)
        assert "[simulated]" in first
        assert "202" in later
        assert '"completed"' in later
        return first + later

    def _load(self, minute: Minute) -> str:
        (load,) = minute.commands
        page = self._page
        self._keys("gf")
        running = self._terminals.begin(load)
        pool = page.locator(f"[data-pool={POOL}]")
        expect(pool).to_contain_text(re.compile(r"waiting\s*[2-9]\d"), timeout=60_000)
        self._picture(page, "04-load")
        return self._terminals.end(running, load)

    def _kill(self, minute: Minute) -> str:
        (kill,) = minute.commands
        page = self._page
        running = self._terminals.begin(kill)
        lost = page.locator("#verdict[data-level=problem]", has_text="lost")
        expect(lost).to_be_visible(timeout=60_000)
        self._picture(page, "05-worker-lost")
        output = self._terminals.end(running, kill)
        assert output.split() == ["120", "200"], output
        return output

    def _stop(self, minute: Minute) -> str:
        pause, resume = minute.commands
        output = self._terminals.run(pause)
        page = self._page
        self._keys("gj")
        page.keyboard.press("/")
        page.keyboard.type("state:queued")
        page.keyboard.press("Enter")
        expect(page.locator("[data-job]")).to_have_count(2)
        self._picture(page, "06-jobs")
        return output + self._terminals.run(resume)

    def _story(self, _: Minute) -> str:
        page = self._page
        self._keys("gj")
        page.keyboard.press("/")
        page.keyboard.press("Control+a")
        page.keyboard.type("attempts:2 state:completed")
        page.keyboard.press("Enter")
        page.locator("[data-job]").first.get_by_role("link").first.click()
        expect(page.locator("dialog[open] [data-why]")).to_be_visible()
        self._picture(page, "07-job")
        page.keyboard.press("Escape")
        return ""

    def _failed(self, minute: Minute) -> str:
        (commands,) = minute.commands
        output = self._terminals.run(commands)
        assert "too_many_attempts" in output or "attempts" in output, output
        return output

    def _last(self, _: Minute) -> str:
        dark = self._tab(scheme="dark")
        expect(dark.locator("[data-worker]").first).to_be_visible()
        self._picture(dark, "09-dark")
        phone = self._tab(width=390, height=844, scale=2)
        expect(phone.locator("[data-worker]").first).to_be_visible()
        self._picture(phone, "10-phone")
        return ""

    @property
    def _page(self) -> Page:
        return self._tabs[0].page

    def _tab(self, **options: object) -> Page:
        sizes = {"width": 1280, "height": 800} | options
        tab = Tab(self._browser, self._terminals.url, **sizes)  # type: ignore[arg-type]
        self._tabs.append(tab)
        tab.page.goto(tab.url)
        expect(tab.page.locator("#verdict")).to_have_attribute(
            "data-level", re.compile("ok|prob|warn")
        )
        return tab.page

    def _keys(self, keys: str) -> None:
        for key in keys:
            self._page.keyboard.press(key)

    def _picture(self, page: Page, name: str) -> None:
        wrong = page.evaluate("[...measured.cutOff(), ...measured.mistakes()]")
        assert wrong == [], f"in the picture {name}: {wrong}"
        page.screenshot(path=self._pictures / f"{name}.png", animations="disabled")
        self.taken.append(f"{name}.png")
