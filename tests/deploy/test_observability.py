"""Dashboards and alert rules against processes that run: every query, by Prometheus itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.queries import DASHBOARD, JOBS, Exports, panels
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.prometheus import FOLDER, MISSING, RULES, Prometheus, installed
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

CHAT = "/v1/chat/completions"


@dataclass
class Fleet:
    """A gateway, a simulated worker, a maintenance process that scales, and Prometheus."""

    stack: Stack
    gateway: Process
    worker: Process
    maintenance: Process

    def exports(self) -> Exports:
        """What all processes export now, the autoscaler's decisions included."""
        wait_for(self._decided, "the autoscaler has decided")
        pages = [http.get(f"{process.url}/metrics").text for process in (self.gateway, self.worker)]
        return Exports(*pages)

    def _decided(self) -> bool:
        self.maintenance.check()
        wanted = (
            "flotilla_autoscale_wanted_workers",
            "flotilla_maintenance_last_run_timestamp_seconds",
        )
        return all(self.gateway.has(name) for name in wanted)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with a limit, as it should have in production."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    with server.client() as client:
        client.config_set("maxmemory", 1 << 30)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def fleet(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """It runs, and has done one of everything."""
    stack = Stack(redis.url, tmp_path_factory.mktemp("fleet"))
    try:
        scaling = {"autoscale": "simulated=1:3", "autoscale_tick_s": 0.5}
        maintenance = stack.start("gateway.maintenance", **scaling)
        slow = {"sim_step_ms": 5, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 2}
        # A long lease: on a machine that is busy with other things no worker must look lost.
        worker = stack.worker(lease_s=15, **slow)
        fleet = Fleet(stack, stack.gateway(), worker, maintenance)
        use(fleet, "simulated")
        yield fleet
    finally:
        for process in stack.processes:  # shown if something fails
            print(process.name, process.log.read_text()[-2000:])
        stack.close()


def use(fleet: Fleet, model: str) -> None:
    """A stream, a plain answer, one that is refused, one that fails, one that is cancelled."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
    with httpx.Client(base_url=fleet.gateway.url, timeout=60) as api:
        assert "[DONE]" in api.post(CHAT, json={**body, "stream": True}).text
        assert api.post(CHAT, json=body).status_code == 200
        assert api.post(CHAT, json={**body, "model": "nobody's"}).status_code == 404
        assert api.post(CHAT, json={**body, "max_tokens": 0}).status_code == 400
        job = api.post("/jobs", json={"body": {**body, "max_tokens": 200}}).json()
        ended = api.post(f"/jobs/{job['id']}/cancel").json()["state"]
        assert ended in {"cancelled", "completed"}  # it may have been quick


@pytest.fixture(scope="module")
def prometheus(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has scraped the fleet before and after the fleet was used."""
    if not installed():
        pytest.skip(MISSING)
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"))
    try:
        prometheus.start()
        for process in (fleet.gateway, fleet.worker):
            prometheus.watch(JOBS[process.name], [process.url])
        wait_for(lambda: sum(prometheus.up().values()) == 2, "both targets are up")
        use(fleet, "simulated")
        yield prometheus
    finally:
        prometheus.stop()


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"] for rule in rules() if "alert" in rule}


def with_rules(exports: Exports) -> list[str]:
    """Make the recording rules known, in their order; returns what is wrong with any rule."""
    problems = []
    for rule in rules():
        if "record" in rule:
            problems += exports.add_rule(rule["record"], rule["expr"])
        else:
            problems += exports.problems(rule["expr"])
    return problems


# --- names, labels and words ---


def test_every_rule_is_about_what_the_fleet_exports(fleet: Fleet) -> None:
    assert with_rules(fleet.exports()) == []


def test_every_panel_is_about_what_the_fleet_exports(fleet: Fleet) -> None:
    exports, queries = fleet.exports(), panels(DASHBOARD.read_text())
    assert [problem for _, expr in queries for problem in exports.problems(expr)] == []


def test_a_slip_in_a_dashboard_is_noticed(fleet: Fleet) -> None:
    text, exports = DASHBOARD.read_text(), fleet.exports()
    slips = {"_ttft_": "_tfft_", "by (pool, lane)": "by (pool, lanes)", "state!=": "stat!="}
    for right, wrong in slips.items():
        assert right in text
        broken = panels(text.replace(right, wrong))
        assert [problem for _, expr in broken for problem in exports.problems(expr)], wrong


# --- by Prometheus ---


@pytest.mark.skipif(not installed(), reason=MISSING)
@pytest.mark.parametrize(
    "command",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules/flotilla.yml"],
        ["test", "rules", "rules/tests/flotilla.test.yml"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_promtool_says_yes(command: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_story_and_is_silent_in_one() -> None:
    stories = yaml.safe_load((FOLDER / "rules" / "tests" / "flotilla.test.yml").read_text())
    fires, silent = set(), set()
    for story in stories["tests"]:
        for case in story["promql_expr_test"]:
            firing = {
                re.findall(r'alertname="(\w+)"', each["labels"])[0] for each in case["exp_samples"]
            }
            (asked,) = re.findall(r'alertname=~?"([^"]+)"', case["expr"])
            fires |= firing
            silent |= {name for name in ALERTS - firing if re.fullmatch(asked, name)}
    assert (ALERTS - fires, ALERTS - silent) == (set(), set())


def test_prometheus_evaluates_every_rule(fleet: Fleet, prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        found = [r for group in prometheus.get("/rules")["groups"] for r in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else []

    found = wait_for(evaluated, "every rule was evaluated")
    assert len(found) == len(rules())
    assert [(r["name"], r.get("lastError")) for r in found if r["health"] != "ok"] == []
    firing = {rule["name"] for rule in found if rule.get("state") == "firing"}
    assert firing == set(), "a fleet that is well raises no alert"


def test_every_panel_has_data(fleet: Fleet, prometheus: Prometheus) -> None:
    for title, expr in panels(DASHBOARD.read_text()):
        seen = wait_for(lambda expr=expr: prometheus.values(expr), f"{title} has data: {expr}")
        assert seen


def test_a_gateway_that_is_gone_raises_an_alert(fleet: Fleet, prometheus: Prometheus) -> None:
    def state() -> str:
        found = [r for group in prometheus.get("/rules")["groups"] for r in group["rules"]]
        return next(str(r["state"]) for r in found if r["name"] == "FlotillaGatewayDown")

    assert state() == "inactive"
    prometheus.watch(JOBS["gateway"], [])
    wait_for(lambda: state() == "pending", "the alert is about to fire")
    prometheus.watch(JOBS["gateway"], [fleet.gateway.url])
    wait_for(lambda: state() == "inactive", "the alert has gone")
