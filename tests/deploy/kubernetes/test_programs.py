"""The containers' commands, run with the manifests' own environment, and probed as they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.deploy.kubernetes.images import images_of_compose
from tests.deploy.kubernetes.manifests import Manifest, composed, container_of, name_of
from tests.harness.client import http
from tests.harness.servers import RedisServer, free_port
from tests.harness.waiting import wait_for

KEY = "k3y"
START_S = 180.0
"""A program that starts cold on a busy machine imports for long."""


@dataclass
class Pod:
    """A container's process, reached as the kubelet reaches it but for port numbers."""

    manifest: Manifest
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    ports: dict[str, int]
    log: Path

    def probe(self, name: str) -> bool:
        """Whether this probe passes."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        probe = container_of(self.manifest)[name]
        if asked := probe.get("httpGet"):
            url = f"http://127.0.0.1:{self.ports[asked['port']]}{asked['path']}"
            try:
                return http.get(url, timeout=probe["timeoutSeconds"]).is_success
            except httpx.TransportError:
                return False
        (python, *arguments) = probe["exec"]["command"]
        assert python == "python"
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                env=self.environment,
                timeout=probe["timeoutSeconds"],
                check=False,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def passes(self, name: str) -> None:
        """Wait until this probe passes."""
        wait_for(lambda: self.probe(name), f"{name} of {name_of(self.manifest)}", START_S)

    def end(self) -> int:
        """The exit status after SIGTERM, within the grace."""
        self.process.send_signal(signal.SIGTERM)
        grace_s = self.manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        return self.process.wait(min(grace_s, 60))


class Cluster:
    """Runs pods of the overlay `keda`, which has all kinds of our processes."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._folder = folder
        self._redis_url = redis_url
        self.pods: list[Pod] = []

    def run(self, name: str, **instead: str) -> Pod:
        """A Deployment's container; `instead` are values of variables that have no place here."""
        manifests = composed("keda")
        (deployment,) = (each for each in manifests if name_of(each) == f"Deployment/{name}")
        (settings,) = (each for each in manifests if each["kind"] == "ConfigMap")
        container = container_of(deployment)
        given = {each["name"]: each.get("value") for each in container.get("env", ())}
        given |= {"FLOTILLA_REDIS_URL": self._redis_url} | settings["data"]
        ports = {port["name"]: free_port() for port in container.get("ports", ())}
        for port in container.get("ports", ()):
            (variable,) = (n for n, value in given.items() if value == str(port["containerPort"]))
            given[variable] = str(ports[port["name"]])
        environment = {
            **{n: value for n, value in os.environ.items() if not n.startswith("FLOTILLA_")},
            "TMPDIR": str(self._folder),
            **{n: value for n, value in given.items() if value is not None},
            **instead,
        }
        command = container.get("command") or images_of_compose()[container["image"]].command()
        (python, *arguments) = command
        assert python.startswith("python")
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
        pod = Pod(deployment, process, environment, ports, log)
        self.pods.append(pod)
        return pod


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pods(
    tmp_path_factory: pytest.TempPathFactory, redis: RedisServer
) -> Iterator[tuple[Pod, Pod, Pod]]:
    """A gateway, a worker and maintenance."""
    folder = tmp_path_factory.mktemp("pods")
    keys = folder / "api-keys"
    keys.write_text(f"observer:{KEY}\n")
    cluster = Cluster(folder, redis.url)
    yield (
        cluster.run("gateway", FLOTILLA_API_KEYS_FILE=str(keys), FLOTILLA_HOST="127.0.0.1"),
        cluster.run(
            "worker",
            FLOTILLA_ENGINE="simulated",
            FLOTILLA_SERVED_MODEL_NAME="flotilla-demo",
            FLOTILLA_WORKER_HOST="127.0.0.1",
        ),
        cluster.run("maintenance"),
    )
    for pod in cluster.pods:
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait(20)
        print(pod.log.read_text()[-3000:])  # shown if the test has failed


def test_their_probes_pass(pods: tuple[Pod, Pod, Pod]) -> None:
    gateway, worker, maintenance = pods
    gateway.passes("readinessProbe")
    gateway.passes("livenessProbe")
    worker.passes("livenessProbe")
    worker.passes("startupProbe")
    worker.passes("readinessProbe")
    maintenance.passes("livenessProbe")


def test_prometheus_gets_their_metrics_with_its_key(pods: tuple[Pod, Pod, Pod]) -> None:
    gateway, worker, _ = pods
    gateway.passes("readinessProbe")
    worker.passes("readinessProbe")
    assert metrics(worker, "health", {}).status_code == 200
    assert metrics(gateway, "http", {}).status_code == 401
    answer = metrics(gateway, "http", {"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200
    assert "flotilla_queue_depth" in answer.text


def metrics(pod: Pod, port: str, headers: dict[str, str]) -> httpx.Response:
    """As the ServiceMonitor or PodMonitor of these pods asks."""
    (endpoint,) = (
        endpoint
        for manifest in composed("gpu, scaled, monitoring")
        for kind in ("endpoints", "podMetricsEndpoints")
        for endpoint in manifest.get("spec", {}).get(kind, ())
        if endpoint["port"] == port
    )
    return http.get(f"http://127.0.0.1:{pod.ports[port]}{endpoint['path']}", headers=headers)


def test_keda_gets_the_number_of_workers_that_are_wanted(pods: tuple[Pod, Pod, Pod]) -> None:
    gateway, *_ = pods
    (scaled,) = (each for each in composed("keda") if each["kind"] == "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["authMode"] == "bearer"
    gateway.passes("readinessProbe")
    path = urlsplit(trigger["metadata"]["url"]).path
    url = f"http://127.0.0.1:{gateway.ports['http']}{path}"

    def answer() -> httpx.Response | None:
        answer = http.get(url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
        return answer if answer.status_code == 200 else None

    wanted = wait_for(answer, "a decision").json()[trigger["metadata"]["valueLocation"]]
    assert isinstance(wanted, int)
    assert scaled["spec"]["minReplicaCount"] <= wanted <= scaled["spec"]["maxReplicaCount"]
    assert http.get(url).status_code == 401


def test_a_gateway_lives_without_redis_but_is_not_ready(
    pods: tuple[Pod, Pod, Pod], redis: RedisServer
) -> None:
    gateway, *_ = pods
    gateway.passes("readinessProbe")
    redis.stop()
    wait_for(lambda: not gateway.probe("readinessProbe"), "it is not ready without Redis")
    gateway.passes("livenessProbe")
    redis.start()
    gateway.passes("readinessProbe")


def test_they_end_when_they_are_told_to(pods: tuple[Pod, Pod, Pod]) -> None:
    """The last one, as nothing runs any more behind it."""
    gateway, worker, maintenance = pods
    # uvicorn ends by the signal once all is closed.
    assert gateway.end() == -signal.SIGTERM
    assert " has ended" in gateway.log.read_text()
    assert worker.end() == 0
    assert maintenance.end() == 0
