"""Runs the compose files in Docker: build, start, use, scale, kill, restart, stop.

Not part of the default run: `make test-compose` (REAL=1: vLLM instead of the simulated engine).
The tests run in order, from `up` to `down`; each leaves the fleet healthy for the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.deploy.compose.fleet import (
    Fleet,
    crash,
    docker,
    healthy,
    holder,
    inspect,
    outcomes,
    own_mb,
)
from tests.harness.settings import ROOT
from tests.harness.waiting import wait_for

REAL = bool(os.environ.get("REAL"))
WORKER, MODEL = ("worker", "flotilla-demo") if REAL else ("worker-sim", "simulated")
OURS = ("gateway", "maintenance", WORKER)
SLOTS = 4
LONG_PROMPT = "word " * 400  # at 10 ms per token: seconds before the first token of the answer
STORY = "Tell me a story about a queue."

pytestmark = pytest.mark.timeout(900)
only_simulated = pytest.mark.skipif(REAL, reason="needs the simulated engine's timing")


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """The fleet that all tests share; prints its containers' logs if a test failed."""
    fleet = Fleet(
        "flotilla-test",
        {
            # Three real engines that start at once on few cores take longer for a step.
            "FLOTILLA_LEASE_S": "15" if REAL else "3",
            "FLOTILLA_SIM_MAX_NUM_SEQS": str(SLOTS),
            "FLOTILLA_SIM_PREFILL_US_PER_TOKEN": "10000",
            "FLOTILLA_SIM_STEP_MS": "20",
        },
    )
    fleet.down()  # leftovers of an interrupted run
    yield fleet
    if request.session.testsfailed:
        print(fleet.compose("--profile", "*", "ps", "--all"))
        print(fleet.compose("--profile", "*", "logs", "--timestamps", "--no-color"))
    fleet.down()


def client(fleet: Fleet, key: str = "none-needed") -> OpenAI:
    """Return an OpenAI client of the published port."""
    return OpenAI(base_url=f"{fleet.url}/v1", api_key=key, max_retries=0, timeout=120)


def ask(fleet: Fleet, text: str, **fields: Any) -> str:
    """Return a chat answer through the published port."""
    messages: Any = [{"role": "user", "content": text}]
    with client(fleet) as openai:
        answer = openai.chat.completions.create(model=MODEL, messages=messages, **fields)
    return answer.choices[0].message.content or ""


# --- files and images ---


@pytest.mark.parametrize(
    "overrides",
    [(), ("gpu",), ("keys",), ("gpu", "keys")],
    ids=lambda overrides: "+".join(("compose", *overrides)),
)
def test_the_files_are_valid(overrides: tuple[str, ...]) -> None:
    files = tuple(f"compose.{name}.yaml" for name in overrides)
    Fleet("flotilla-test", files=files).compose("--profile", "*", "config", "--quiet")


def test_the_images_are_built(fleet: Fleet) -> None:
    fleet.compose("build", "gateway", *(["worker"] if REAL else []))
    size, own = own_mb("flotilla-gateway:test", os.environ["PYTHON_IMAGE"])
    print(f"\nthe gateway's image: {size:.0f} MB, {own:.0f} MB above its base")
    assert own < 150, "python:3.11-slim-bookworm has about 130 MB, and 300 MB are the limit"
    config = inspect("flotilla-gateway:test")["Config"]
    assert config["Labels"]["org.opencontainers.image.version"] == "test"
    assert config["User"] == "10001:10001"
    if REAL:
        size, own = own_mb("flotilla-worker:test", os.environ["PYTHON_IMAGE"])
        print(f"the worker's image: {size:.0f} MB, {own:.0f} MB above its base")


# --- up ---


def test_up_waits_until_all_are_healthy(fleet: Fleet) -> None:
    fleet.up(*OURS)
    assert httpx.get(f"{fleet.url}/readyz").json()["status"] == "ready"
    assert all(healthy(fleet.containers(service)[0]) for service in ("redis", *OURS))


def test_chat_through_the_published_port(fleet: Fleet) -> None:
    answer = ask(fleet, "What is Flotilla?", temperature=0, max_tokens=64)
    assert ("an inference fleet" if REAL else "[simulated]") in answer
    messages: Any = [{"role": "user", "content": STORY}]
    with client(fleet) as openai:
        chunks = list(
            openai.chat.completions.create(
                model=MODEL,
                messages=messages,
                stream=True,
                max_tokens=32,
                extra_body={"min_tokens": 32},
            )
        )
    assert len(chunks) > 16
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.skipif(not REAL, reason="needs vLLM's grammar")
def test_structured_output(fleet: Fleet) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = ask(fleet, "Say hello.", temperature=0, max_tokens=64, response_format=shape)
    assert answer.lstrip().startswith("{")


@pytest.mark.parametrize("service", ["redis", *OURS])
def test_a_container_has_no_unneeded_rights(fleet: Fleet, service: str) -> None:
    assert fleet.execute(service, "touch", "/tmp/x").returncode == 0
    assert "Read-only file system" in fleet.execute(service, "touch", "/usr/x").stderr
    status = fleet.execute(service, "cat", "/proc/self/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split()[0] == ("999" if service == "redis" else "10001")


def test_the_gateway_image_has_no_torch(fleet: Fleet) -> None:
    assert "ModuleNotFoundError" in fleet.execute("gateway", "python", "-c", "import torch").stderr


def test_redis_is_reached_from_its_network_only(fleet: Fleet) -> None:
    networks = inspect(fleet.containers("redis")[0])["NetworkSettings"]["Networks"]
    assert list(networks) == ["flotilla-test_redis"]
    assert inspect("flotilla-test_redis")["Internal"]
    assert not inspect(fleet.containers("redis")[0])["HostConfig"]["PortBindings"]


# --- scaling and failures ---


def test_three_workers_share_the_jobs(fleet: Fleet) -> None:
    fleet.up("--no-recreate", "--scale", f"{WORKER}=3", *OURS)
    containers = {name[:12] for name in fleet.containers(WORKER)}
    assert len(containers) == 3
    n = 3 * (64 if REAL else SLOTS)
    jobs = fleet.ended(fleet.jobs(n, MODEL, STORY, max_tokens=32))
    assert outcomes(jobs) == {"completed"}
    assert {holder(job) for job in jobs} == containers


@only_simulated
def test_a_crashed_worker_is_restarted_and_its_jobs_go_on_elsewhere(fleet: Fleet) -> None:
    # One token: no job is lost in the middle of an answer.
    ids = fleet.jobs(3 * SLOTS + 8, MODEL, LONG_PROMPT, max_tokens=1)

    def all_busy() -> str:
        running = [job for i in ids if (job := fleet.job(i))["state"] == "in_progress"]
        holders = [holder(job) for job in running]
        return holders[-1] if len(set(holders)) == 3 else ""

    victim = wait_for(all_busy, "every worker has jobs")
    crash(victim)
    jobs = fleet.ended(ids)
    assert outcomes(jobs) == {"completed"}
    moved = [job for job in jobs if len(job["attempts"]) > 1]
    assert 0 < len(moved) <= SLOTS
    assert all(victim in job["attempts"][0]["worker"] for job in moved)
    wait_for(lambda: healthy(victim), "the crashed worker is back")
    assert inspect(victim)["RestartCount"] == 1


def test_redis_keeps_its_jobs_over_a_restart(fleet: Fleet) -> None:
    done = fleet.jobs(1, MODEL, "hi", max_tokens=4)
    fleet.ended(done)
    fleet.compose("stop", WORKER)
    waiting = fleet.jobs(5, MODEL, "hi", max_tokens=4)
    fleet.compose("restart", "redis")
    wait_for(lambda: httpx.get(f"{fleet.url}/readyz").status_code == 200, "the gateway is ready")
    assert fleet.job(done[0])["state"] == "completed"
    assert outcomes([fleet.job(i) for i in waiting]) == {"queued"}
    fleet.compose("start", WORKER)
    assert outcomes(fleet.ended(waiting)) == {"completed"}
    wait_for(lambda: all(map(healthy, fleet.containers(WORKER))), "the workers are healthy", 300)


def test_a_stopped_worker_ends_its_answers_first(fleet: Fleet) -> None:
    containers = fleet.containers(WORKER)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": STORY}],
        "stream": True,
        "max_tokens": 200,
        "min_tokens": 200,
    }
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        first = [next(lines) for _ in range(5)]
        stop = threading.Thread(target=fleet.compose, args=("stop", WORKER))
        stop.start()
        rest = list(lines)
        stop.join()
    assert rest[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in first + rest[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("error" in chunk for chunk in chunks)
    states = [inspect(container)["State"] for container in containers]
    assert [state["ExitCode"] for state in states] == [0] * len(containers)
    fleet.compose("start", WORKER)
    wait_for(lambda: all(map(healthy, containers)), "the workers are healthy", 300)


# --- profiles and overrides ---


@only_simulated
def test_prometheus_finds_every_gateway_and_worker(fleet: Fleet) -> None:
    fleet.up("prometheus")

    def up() -> bool:
        code = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
        url = "http://prometheus:9090/api/v1/query?query=up"
        found = json.loads(fleet.execute("gateway", "python", "-c", code, url).stdout)
        samples = [(s["metric"]["job"], s["value"][1]) for s in found["data"]["result"]]
        return sorted(samples) == [("flotilla-gateway", "1"), *[("flotilla-worker", "1")] * 3]

    wait_for(up, "Prometheus scrapes one gateway and three workers")


@only_simulated
def test_the_docker_proxy_lets_through_what_the_autoscaler_needs(fleet: Fleet) -> None:
    fleet.up("docker-proxy")
    worker = fleet.containers(WORKER)[0]
    code = """
import sys, http.client
for line in sys.argv[1:]:
    connection = http.client.HTTPConnection("docker-proxy", 2375)
    connection.request(*line.split())
    print(connection.getresponse().status)
"""
    calls = {
        "GET /_ping": 200,
        "GET /containers/json?all=true": 200,
        "GET /v1.41/containers/json": 200,
        f"POST /containers/{worker}/start": 304,  # it runs
        f"POST /v1.41/containers/{worker}/start": 304,
        f"POST /containers/{worker}/kill": 403,
        f"POST /containers/{worker}/kill?signal=SIGKILL": 403,
        f"POST /containers/{worker}/kill?signal=SIGTERM&signal=SIGKILL": 403,
        f"POST /containers/{'0' * 64}/kill?signal=SIGTERM": 404,
        f"POST /containers/{worker}/exec": 403,
        f"POST /containers/{worker}/../create": 403,
        f"POST /containers/{worker}/start/../../create": 403,
        "POST /containers/create": 403,
        "GET /containers/json/../../info": 403,
        "POST /images/create?fromImage=x": 403,
        f"DELETE /containers/{worker}": 403,
        f"GET /containers/{worker}/json": 403,
        "GET /info": 403,
        "GET /secrets": 403,
    }
    done = fleet.execute("maintenance", "python", "-c", code, *calls)
    got = dict(zip(calls, map(int, done.stdout.split()), strict=True))
    assert got == calls


@only_simulated
def test_the_autoscaler_starts_and_drains_containers(fleet: Fleet) -> None:
    fleet.compose("stop", WORKER)
    fleet.settings |= {
        "FLOTILLA_AUTOSCALE": f"{MODEL}=0:2",
        "FLOTILLA_AUTOSCALE_ACTUATOR": "docker",
        "FLOTILLA_AUTOSCALE_IDLE_S": "3",
        "FLOTILLA_AUTOSCALE_DOWN_AFTER_S": "3",
        "FLOTILLA_DOCKER_SERVICE": WORKER,
    }
    fleet.up("maintenance")
    assert not fleet.containers(WORKER)
    jobs = fleet.ended(fleet.jobs(4, MODEL, "hi", max_tokens=8))
    assert outcomes(jobs) == {"completed"}
    wait_for(lambda: not fleet.containers(WORKER), "the idle workers have stopped")
    for name in list(fleet.settings):
        if "AUTOSCALE" in name:
            del fleet.settings[name]


@only_simulated
def test_with_keys_a_call_without_one_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    for name, text in {
        "redis_password": "p4ssw0rd\n",
        "flotilla_redis_url": "redis://:p4ssw0rd@redis:6379/0\n",
        "api_keys": "# tenants\nalice:sk-alice\n",
        "flotilla_admin_keys": "ops:sk-ops\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    settings = {"SECRETS": str(tmp_path), "FLOTILLA_HOST": "127.0.0.1"}
    own = Fleet("flotilla-test-keys", settings, files=("compose.keys.yaml",))
    try:
        own.up(*OURS)
        refused = own.execute("redis", "redis-cli", "-e", "get", "x")
        assert "NOAUTH" in refused.stdout + refused.stderr
        assert httpx.get(f"{own.url}/v1/models").status_code == 401
        messages: Any = [{"role": "user", "content": "hi"}]
        with client(own, "sk-alice") as openai:
            answer = openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
        assert answer.choices[0].message.content
        arguments = own.execute("redis", "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout
        assert "redis-server" in arguments
        assert "p4ssw0rd" not in arguments
    finally:
        own.down()


def test_the_backup_of_the_readme_restores_jobs(fleet: Fleet, tmp_path: Path) -> None:
    fleet.up(*OURS)
    ids = fleet.jobs(3, MODEL, "hi", max_tokens=4)
    fleet.ended(ids)
    _, _, rest = (ROOT / "compose" / "README.md").read_text().partition("**Backup.**")
    commands = rest.partition("```sh\n")[2].partition("docker compose up")[0]
    assert "redis.tar" in commands
    subprocess.run(
        ["sh", "-eu", "-c", commands.replace("flotilla_", f"{fleet.project}_")],
        cwd=tmp_path,
        env=os.environ
        | fleet.variables
        | {"COMPOSE_FILE": str(ROOT / "compose" / "compose.yaml"), "COMPOSE_PROFILES": "sim"},
        check=True,
    )
    fleet.up(*OURS)
    assert outcomes([fleet.job(i) for i in ids]) == {"completed"}


# --- down ---


def test_down_leaves_nothing(fleet: Fleet) -> None:
    fleet.down()
    ours = ("--filter", f"label=com.docker.compose.project={fleet.project}", "-q")
    assert docker("ps", "-a", *ours) == ""
    assert docker("volume", "ls", *ours) == ""
    assert docker("network", "ls", *ours) == ""
