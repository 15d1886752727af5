"""Rules and dashboards are those of compose/observability, and scrapes have the names they use."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes.manifests import COMPOSITIONS, FOLDER, composed, name_of
from tests.deploy.kubernetes.rules import MANIFEST, RULES, prometheus_rule
from tests.harness.settings import ROOT

OBSERVABILITY = ROOT / "compose" / "observability"
DASHBOARDS = sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json"))
MONITORED = [name for name, (_, components) in COMPOSITIONS.items() if "monitoring" in components]


def of_kind(kind: str) -> list[Any]:
    return [each for each in composed(MONITORED[0]) if each["kind"] == kind]


def test_the_rule_was_made_of_the_rules_as_they_are() -> None:
    assert MANIFEST.read_text() == prometheus_rule(), "run python -m tests.deploy.kubernetes.rules"
    assert len(list(RULES.parent.glob("*.yml"))) == 1, "only this file becomes a PrometheusRule"


@pytest.mark.parametrize("name", MONITORED)
def test_rules_are_the_same(name: str) -> None:
    (rule,) = (each for each in composed(name) if each["kind"] == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["spec"]["groups"]


def test_each_dashboard_is_a_config_map_for_grafana() -> None:
    maps = [each for each in of_kind("ConfigMap") if "dashboard" in name_of(each)]
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each)) < 256 * 1024  # what `kubectl apply` can remember
    given = sorted(text for each in maps for text in each["data"].values())
    assert given == sorted(path.read_text() for path in DASHBOARDS)
    assert len(given) >= 3


def test_scrapes_have_the_job_names_that_rules_and_dashboards_look_for() -> None:
    text = RULES.read_text() + "".join(path.read_text() for path in DASHBOARDS)
    wanted = {
        job
        for words in re.findall(r'job=~?\\?"([^"\\]+)', text)
        for job in words.split("|")
        if not job.startswith("$")
    }
    given = {
        rewritten["replacement"]
        for monitor in of_kind("ServiceMonitor") + of_kind("PodMonitor")
        for endpoint in monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        for rewritten in endpoint["relabelings"]
        if rewritten["targetLabel"] == "job"
    }
    assert wanted == given
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == given


def test_whoever_scrapes_workers_is_let_in() -> None:
    """By its namespace: the network policy knows no more of Prometheus."""
    (policy,) = (each for each in composed("cpu") if name_of(each) == "NetworkPolicy/worker")
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert f"the namespace `{namespace}`" in " ".join((FOLDER / "README.md").read_text().split())
    assert rule["ports"] == [{"port": "health"}]
