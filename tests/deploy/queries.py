"""Finds names in PromQL queries that nothing exports: metrics, labels and bounds of buckets.

Prometheus itself answers a query of such names with no data, as it does where nothing happens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.prometheus import FOLDER

_METRIC = re.compile(r"\b((?:\w+:)?(?:flotilla|vllm)[\w:]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
DASHBOARD = FOLDER / "grafana" / "dashboards" / "flotilla.json"
VARIABLES = {"__rate_interval": "1m", "pool": ".*"}
JOBS = {"gateway": "flotilla-gateway", "worker": "flotilla-worker"}
TARGET_LABELS = {"job", "instance"}
"""What Prometheus adds to all that it scrapes."""


class Exports:
    """The metrics that processes export, with their labels."""

    def __init__(self, *scrapes: str) -> None:
        """`scrapes`: what their pages say."""
        self.labels: dict[str, set[str]] = {}
        """By the name of a sample."""
        self._bounds: dict[str, set[str]] = {}
        for scrape in scrapes:
            for family in text_string_to_metric_families(scrape):
                for sample in family.samples:
                    self.labels.setdefault(sample.name, set(TARGET_LABELS)).update(sample.labels)
                    self._bounds.setdefault(sample.name, set()).add(sample.labels.get("le", ""))

    def add_rule(self, name: str, expr: str) -> list[str]:
        """Add a recording rule; its series have the labels that it groups by."""
        self.labels[name] = set(_grouped(expr))
        return self.problems(expr)

    def problems(self, expr: str) -> list[str]:
        """Return what a query names and nothing exports."""
        found, known = [], {*TARGET_LABELS}
        for name, matchers in _METRIC.findall(expr):
            labels = self.labels.get(name)
            if labels is None:
                found.append(f"nothing exports {name}")
                continue
            known |= labels
            for label, value in _MATCHER.findall(matchers):
                if label not in labels:
                    found.append(f"{name} has no label {label}")
                if label == "le" and value not in self._bounds[name]:
                    found.append(f"{name} has no bucket {value}")
        found += [f"there is no label {label}" for label in _grouped(expr) if label not in known]
        return [f"{problem}: {expr}" for problem in found]


def _grouped(expr: str) -> Iterable[str]:
    return (label for labels in _GROUPING.findall(expr) for label in re.findall(r"\w+", labels))


def panels(dashboard: str) -> list[tuple[str, str]]:
    """`(title, query)` of every target of a dashboard, Grafana's variables filled in."""
    found = []
    for panel in json.loads(dashboard)["panels"]:
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(f"${name}", value)
            found.append((panel["title"], expr))
    return found
