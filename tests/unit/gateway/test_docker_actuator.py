"""The docker actuator against a small Docker API over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.ops.autoscaler.docker import Docker
from shared.job.states import WorkerState
from tests.harness.http_stub import Answer, HttpStub, Request
from tests.unit.worker_info import worker

PROJECT, SERVICE = "fleet", "worker"


class Daemon(HttpStub):
    """Containers of one host; `ended` plays a worker that has drained."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuses: set[str] = set()
        """Containers with which nothing can be done."""
        super().__init__()

    def add(self, letter: str, state: str, *, service: str = SERVICE, **labels: str) -> str:
        container = letter * 64
        prefix = "com.docker.compose."
        found = {"project": PROJECT, "service": service, "oneoff": "False", **labels}
        self.containers[container] = {
            "Id": container,
            "State": state,
            "Labels": {prefix + name: value for name, value in found.items()},
        }
        return container

    def states(self) -> dict[str, str]:
        return {container[0]: value["State"] for container, value in self.containers.items()}

    def answer(self, request: Request) -> Answer:
        url = urlsplit(request.path)
        if request.method == "GET":
            assert url.path == "/containers/json"
            query = parse_qs(url.query)
            assert query["all"] == ["true"]
            wanted = dict(one.split("=") for one in json.loads(query["filters"][0])["label"])
            found = [
                container
                for container in self.containers.values()
                if wanted.items() <= container["Labels"].items()
            ]
            return Answer(json.dumps(found).encode())
        _, kind, container, what = url.path.split("/")
        assert kind == "containers"
        self.calls.append(f"{what} {container[0]} {url.query}".strip())
        if container in self.refuses:
            return Answer(b"{}", 500)
        if what == "start":
            self.containers[container]["State"] = "running"
        return Answer(status=204)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


def docker(daemon: Daemon) -> Docker:
    return Docker(daemon.url.replace("http://", "tcp://"), PROJECT, SERVICE)


def serves(container: str, jobs: int = 0, state: WorkerState = WorkerState.READY) -> Any:
    return worker(f"w-{container[0]}", host=container[:12], jobs=jobs, state=state)


async def test_idle_containers_are_started(daemon: Daemon) -> None:
    for letter, state in (("a", "created"), ("b", "exited"), ("c", "created")):
        daemon.add(letter, state)
    daemon.add("0", "created", service="gateway")
    daemon.add("1", "created", project="somebody-elses")
    daemon.add("2", "created", oneoff="True")
    assert await docker(daemon).reconcile(2, [], []) == []
    assert daemon.calls == ["start a", "start b"]
    assert daemon.states()["c"] == "created"
    assert await docker(daemon).reconcile(2, [], []) == []  # they load
    assert len(daemon.calls) == 2


async def test_the_least_busy_worker_is_drained_once(daemon: Daemon) -> None:
    a, b, c = (daemon.add(letter, "running") for letter in "abc")
    workers = [serves(a, jobs=5), serves(b, jobs=2), serves(c, jobs=9)]
    draining = await docker(daemon).reconcile(2, workers, [])
    assert draining == [b]
    assert daemon.calls == ["kill b signal=SIGTERM"]
    # It has not said so yet: a second signal would make it hand its jobs back.
    draining = await docker(daemon).reconcile(2, workers, draining)
    assert draining == [b]
    assert len(daemon.calls) == 1
    daemon.containers[b]["State"] = "exited"
    assert await docker(daemon).reconcile(2, [workers[0], workers[2]], draining) == []
    assert await docker(daemon).reconcile(3, [workers[0], workers[2]], []) == []
    assert daemon.calls[1:] == ["start b"]


async def test_a_worker_that_loads_is_left_alone(daemon: Daemon) -> None:
    a, b = daemon.add("a", "running"), daemon.add("b", "running")
    daemon.add("c", "restarting")
    workers = [serves(a, state=WorkerState.STARTING), serves(b, jobs=1)]
    assert await docker(daemon).reconcile(0, workers, []) == [b]
    assert daemon.calls == ["kill b signal=SIGTERM"]


async def test_more_than_there_are(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.add("a", "created")
    await docker(daemon).reconcile(3, [], [])
    assert daemon.calls == ["start a"]
    assert "3 more workers are wanted, but only 1" in caplog.text
    assert "docker compose create --scale worker=N" in caplog.text


async def test_one_that_refuses_does_not_stop_the_others(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = daemon.add("a", "running"), daemon.add("b", "running")
    daemon.refuses.add(a)
    assert await docker(daemon).reconcile(0, [serves(a), serves(b)], []) == [b]
    assert "could not kill" in caplog.text


async def test_nobody_there() -> None:
    nobody = Docker("http://127.0.0.1:9", PROJECT, SERVICE)
    with pytest.raises(httpx.ConnectError):
        await nobody.reconcile(1, [], [])
