"""Rules and dashboard are those of compose/observability, and scrapes have the names they use."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import yaml

from tests.deploy.kubernetes.manifests import FOLDER, composed, name_of
from tests.deploy.queries import DASHBOARD
from tests.harness.prometheus import RULES
from tests.harness.settings import ROOT


def of_kind(kind: str) -> list[Any]:
    return [each for each in composed("gpu, scaled, monitoring") if each["kind"] == kind]


def test_the_command_for_rules_makes_an_object_of_them() -> None:
    (command,) = re.findall(
        r"^```sh\n(\([^`]*)\| kubectl apply -f -\n```",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    made = subprocess.run(
        ["sh", "-ec", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    rule = yaml.safe_load(made.stdout)
    assert rule == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "flotilla", "namespace": "flotilla"},
        "spec": yaml.safe_load(RULES.read_text()),
    }


def test_the_dashboard_is_a_config_map_for_grafana() -> None:
    (made,) = (each for each in of_kind("ConfigMap") if "dashboard" in name_of(each))
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert list(made["data"].values()) == [DASHBOARD.read_text()]


def test_scrapes_have_the_job_names_that_rules_and_the_dashboard_look_for() -> None:
    text = RULES.read_text() + DASHBOARD.read_text()
    wanted = set(re.findall(r'job=\\?"([^"\\]+)', text))
    given = {
        rewritten["replacement"]
        for monitor in of_kind("ServiceMonitor") + of_kind("PodMonitor")
        for endpoint in monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        for rewritten in endpoint["relabelings"]
        if rewritten["targetLabel"] == "job"
    }
    assert wanted == given
    config = yaml.safe_load((RULES.parents[1] / "prometheus.yml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == given


def test_whoever_scrapes_workers_is_let_in() -> None:
    """By its namespace: the network policy knows no more of Prometheus."""
    (policy,) = (each for each in composed("cpu") if name_of(each) == "NetworkPolicy/worker")
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert f"the namespace `{namespace}`" in " ".join((FOLDER / "README.md").read_text().split())
    assert rule["ports"] == [{"port": "health"}]
