"""Alert rules have the values of the table of limits."""

from __future__ import annotations

import re

import pytest

from shared.fleet.limits import TABLE, Alert, Level, Limit
from tests.deploy.test_dashboards import alerts

ROWS = [(limit, alert) for limit in TABLE for alert in limit.alerts]
SEVERITY = {Level.PROBLEM: "critical", Level.WARNING: "warning"}


def value_of(limit: Limit, alert: Alert) -> float:
    value = limit.warning if alert.level is Level.WARNING else limit.problem
    assert value is not None, limit.name
    return value


def compared(expr: str) -> set[float]:
    """The numbers with which an expression compares, but for "there is one" and "there is none"."""
    return {float(number) for number in re.findall(r"[<>=]=? ?(\d[\d.]*)\b", expr)} - {0, 1}


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
