"""A fleet with whose metrics the dashboards and alert rules are compared."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.maintenance import maintenance_tasks as tasks
from shared.job.lanes import LANES
from shared.job.states import JobState, WorkerState
from shared.store.redis import dead_letters
from tests.harness.client import CHAT, chat
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT, QUICK_SCALING
from tests.harness.prometheus import FOLDER, Prometheus
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for
from tests.promql import Exports, fill_in

DASHBOARDS = FOLDER / "grafana" / "dashboards"
VARIABLES = {"__rate_interval": "1m", "pool": ".*", "instance": ".*"}
JOBS = {"gateway": "flotilla-gateway", "worker": "flotilla-worker"}


@dataclass
class ObservedFleet:
    """A gateway, a simulated worker, and a maintenance process that scales."""

    redis_url: str
    gateway: Process
    worker: Process
    maintenance: Process

    def exports(self) -> Exports:
        """What all processes export now, with the results of maintenance tasks."""
        wait_for(self._decided, "the autoscaler has decided")
        exports = Exports()
        for process in (self.gateway, self.worker):
            job, instance = JOBS[process.name], process.url.removeprefix("http://")
            text = httpx.get(f"{process.url}/metrics").text
            exports.add_scrape(text, job=job, instance=instance)
            exports.add("up", ["job", "instance"])
        exports.add_words("job", JOBS.values())
        exports.add_words("state", [*JobState, *WorkerState])
        exports.add_words("lane", LANES)
        exports.add_words("what", dead_letters.KINDS)
        exports.add_words("task", [tasks.REPAIR, tasks.PRUNE, tasks.AUTOSCALE])
        return exports

    def _decided(self) -> bool:
        self.maintenance.check()
        wanted = (
            "flotilla_autoscale_wait_seconds",
            "flotilla_maintenance_last_run_timestamp_seconds",
        )
        return all(self.gateway.has(name) for name in wanted)

    def use(self, model: str) -> None:
        """A stream, a plain answer, one that is refused, one that fails, one that is cancelled."""
        body = chat(model=model, max_tokens=20)
        with httpx.Client(base_url=self.gateway.url, timeout=60) as api:
            assert "[DONE]" in api.post(CHAT, json={**body, "stream": True}).text
            assert api.post(CHAT, json=body).status_code == 200
            assert api.post(CHAT, json={**body, "model": "nobody's"}).status_code == 404
            assert api.post(CHAT, json={**body, "max_tokens": 0}).status_code == 400
            job = api.post("/jobs", json={"body": {**body, "max_tokens": 200}}).json()
            ended = api.post(f"/jobs/{job['id']}/cancel").json()["state"]
            assert ended in {"cancelled", "completed"}  # it may have been quick


@contextlib.contextmanager
def observed_fleet(folder: Path) -> Iterator[ObservedFleet]:
    """It runs, and has done one of everything. Its Redis has a limit, as in production."""
    redis = RedisServer(folder)
    redis.start()
    with redis.client() as client:
        client.config_set("maxmemory", 1 << 30)
    stack = Stack(redis.url, folder)
    try:
        scaling = {"autoscale": "simulated=1:3", **QUICK_SCALING}
        maintenance = stack.maintenance(**PATIENT, **scaling)
        slow = {"sim_step_ms": 5, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 2}
        worker = stack.worker(**PATIENT, **slow)
        fleet = ObservedFleet(redis.url, stack.gateway(**PATIENT), worker, maintenance)
        fleet.use("simulated")
        yield fleet
    finally:
        for process in stack.processes:  # shown if something fails
            print(process.name, process.log.read_text()[-2000:])
        stack.close()
        redis.stop()


@contextlib.contextmanager
def watched(fleet: ObservedFleet, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the fleet before and after the fleet was used."""
    prometheus = Prometheus(folder)
    try:
        prometheus.start()
        for process in (fleet.gateway, fleet.worker):
            prometheus.watch(JOBS[process.name], [process.url])
        wait_for(lambda: sum(prometheus.up().values()) == 2, "both targets are up")
        fleet.use("simulated")
        yield prometheus
    finally:
        prometheus.stop()


def panels(name: str) -> list[tuple[str, str]]:
    """`(title, query)` of every target of a dashboard, Grafana's variables filled in."""
    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
    found = [
        (panel["title"], fill_in(target["expr"], VARIABLES))
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(found) > 10
    return found
