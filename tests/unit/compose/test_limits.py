"""Alert rules, dashboards and runbooks have the values of the table of limits."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from shared.fleet import limits
from shared.fleet.limits import TABLE, Alert, Level, Limit, Unit
from tests.unit.compose.test_dashboards import FOLDER, GRAFANA, NAMES, alerts, dashboard, sections
from worker.worker_settings import WorkerSettings

ROWS = [(limit, alert) for limit in TABLE for alert in limit.alerts]
SEVERITY = {Level.PROBLEM: "critical", Level.WARNING: "warning"}
PANELS = {
    "First token, p99": limits.FIRST_TOKEN,
    "First token": limits.FIRST_TOKEN,
    "Oldest wait": limits.LONG_WAIT,
    "Oldest wait by lane": limits.LONG_WAIT,
    "Failed jobs": limits.JOBS_FAIL,
    "Streams that were late": limits.LATE_STREAMS,
    "Slots busy": limits.SLOTS_BUSY,
    "Dead letters": limits.DEAD_LETTERS,
    "Redis full": limits.REDIS_MEMORY,
    "Full lanes": limits.QUEUE_FULL,
    "Background tasks that have ended": limits.GATEWAY_TASKS,
    "KV cache in use": limits.KV_CACHE,
}
AMOUNT = re.compile(r"\b\d+(?:\.\d+)?(?: %| s\b| minutes\b)")


def seconds(value: float) -> str:
    """As a runbook has it: `60 s`, `5 minutes`."""
    return f"{value / 60:g} minutes" if value >= 120 else f"{value:g} s"


def value_of(limit: Limit, alert: Alert) -> float:
    value = limit.warning if alert.level is Level.WARNING else limit.problem
    assert value is not None, limit.name
    return value


def shown(limit: Limit, value: float | None) -> set[str]:
    """A value for people, with its unit."""
    if value is None or limit.unit is Unit.NUMBER:
        return set()
    return {seconds(value) if limit.unit is Unit.SECONDS else f"{100 * value:g} %"}


def amounts(limit: Limit, alert: Alert) -> set[str]:
    """What a person has to read about an alert."""
    times = {seconds(each) for each in (alert.for_s, limit.within_s) if each}
    return times | shown(limit, value_of(limit, alert))


def compared(expr: str) -> set[float]:
    """The numbers with which an expression compares, but for "there is one" and "there is none"."""
    return {float(number) for number in re.findall(r"[<>=]=? ?(\d[\d.]*)\b", expr)} - {0, 1}


def test_the_names_of_limits_differ() -> None:
    assert len({limit.name for limit in TABLE}) == len(TABLE) > 25
    assert all(limit.lowest > 0 for limit in TABLE)
    assert [limit.name for limit in TABLE if limit.text and not limit.do] == []


@pytest.mark.parametrize("name", sorted({alert.name for _, alert in ROWS}))
def test_an_alert_has_the_values_of_its_limit(name: str) -> None:
    rule, expected = alerts()[name], set()
    for limit, alert in ROWS:
        if alert.name == name:
            assert rule["labels"]["severity"] == SEVERITY[alert.level]
            assert minutes(rule.get("for", "0m")) == alert.for_s
            assert not limit.within_s or f"[{limit.within_s / 60:g}m]" in rule["expr"]
            expected |= {value_of(limit, alert), limit.least}
    assert compared(rule["expr"]) == expected - {0, 1}


def minutes(text: str) -> float:
    number, unit = float(text[:-1]), text[-1]
    return number * {"s": 1, "m": 60, "h": 3600}[unit]


def test_no_alert_has_a_value_of_its_own() -> None:
    known = {alert.name for _, alert in ROWS}
    own = {name: compared(rule["expr"]) for name, rule in alerts().items() if name not in known}
    assert {name: numbers for name, numbers in own.items() if numbers} == {}


def test_the_first_token_is_late_at_one_bucket() -> None:
    files = [FOLDER / "rules" / "flotilla.yml"]
    files += [GRAFANA / "dashboards" / f"{name}.json" for name in NAMES]
    found = [
        re.findall(r'ttft_seconds_bucket\{le=\\?"([\d.]+)', file.read_text()) for file in files
    ]
    assert set(chain(*found)) == {f"{limits.FIRST_TOKEN.warning:g}"}
    late = [alerts()[alert.name] for alert in limits.LATE_STREAMS.alerts]
    assert all(
        f"{limits.FIRST_TOKEN.warning:g} s" in rule["annotations"]["summary"] for rule in late
    )


def test_a_worker_claims_up_to_the_limit_of_the_kv_cache() -> None:
    assert WorkerSettings.model_fields["kv_high_watermark"].default == limits.KV_CACHE.warning


def test_panels_change_colour_at_the_limits() -> None:
    coloured = set()
    for each in (p for name in NAMES for p in dashboard(name)["panels"] if p["type"] != "row"):
        shown = each["fieldConfig"]["defaults"].get("thresholds", {"steps": []})["steps"]
        steps = [(step["color"], step["value"]) for step in shown if step["value"] is not None]
        if steps:
            limit = PANELS[each["title"]]
            coloured.add(each["title"])
            levels = (("orange", limit.warning), ("red", limit.problem))
            assert steps == [level for level in levels if level[1] is not None], each["title"]
    assert coloured == set(PANELS)


def test_every_limit_leads_to_a_runbook_that_there_is() -> None:
    anchors = {f"compose/observability/runbooks.md#{name.lower()}" for name in sections()}
    assert {limit.anchor for limit in TABLE} - {""} <= anchors


@pytest.mark.parametrize("name", sorted({alert.name for _, alert in ROWS}))
def test_a_runbook_and_an_alert_name_the_same_amounts(name: str) -> None:
    rows = [row for row in ROWS if row[1].name == name]
    wanted = set().union(*(amounts(*row) for row in rows))
    means = " ".join(sections()[name].partition("**Users feel.**")[0].split())
    assert wanted <= set(AMOUNT.findall(means))
    notes = alerts()[name]["annotations"]
    said = set(AMOUNT.findall(f"{means} {notes['summary']} {notes['description']}"))
    for limit, _ in rows:
        wanted |= shown(limit, limit.warning) | shown(limit, limit.problem)
    if name.startswith("FlotillaTtft"):
        wanted.add(seconds(limits.FIRST_TOKEN.lowest))
    assert said <= wanted
