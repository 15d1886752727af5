"""axe-core's checks of a page, without what a project may choose."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SEVERE = ("serious", "critical")
_OPTIONS = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
_SHOWN = 6


def violations(page: Page, severity: tuple[str, ...] = SEVERE) -> list[str]:
    """One line for each rule that is broken: the rule, how bad it is, where, and why."""
    found = Axe().run(page, options=_OPTIONS).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {_places(each['nodes'])}"
        for each in found
        if each["impact"] in severity
    ]


def _places(nodes: list[dict[str, object]]) -> str:
    return "; ".join(f"{node['target']} {node['failureSummary']}" for node in nodes[:_SHOWN])
