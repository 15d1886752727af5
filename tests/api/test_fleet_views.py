"""What the gateway answers about the fleet where vLLM answers about one server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.harness.client import MODEL, http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

TEAM = {"authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A gateway with keys, and one worker with one slot."""
    module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    return module_stack.gateway(api_keys="team:s3cret")


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60, headers=TEAM) as client:
        yield client


def test_the_probes_need_no_key_and_have_the_bodies_that_their_clients_read(
    gateway: Process,
) -> None:
    for method in ("GET", "POST"):
        ping = http.request(method, f"{gateway.url}/ping")
        assert (ping.status_code, ping.json()) == (200, {"status": "Healthy"})
    health = http.get(f"{gateway.url}/health")
    assert (health.status_code, health.content) == (200, b"")


def test_the_versions_of_gateway_and_engines(api: httpx.Client) -> None:
    found = wait_for(lambda: (v := api.get("/version").json())["engines"] and v, "it is known")
    assert found["version"]
    assert found["engines"] == {"simulated": 1}


def test_a_model_has_its_context_length_and_readiness(api: httpx.Client) -> None:
    def ready() -> bool:
        return bool(api.get(f"/v1/models/{MODEL}").json()["flotilla"]["ready"])

    wait_for(ready, "the worker is ready")
    (card,) = api.get("/v1/models").json()["data"]
    assert card["id"] == MODEL
    assert card["max_model_len"] > 0
    assert (card["flotilla"]["workers_ready"], card["flotilla"]["wait_reason"]) == (1, "")
    assert api.get(f"/v1/models/{MODEL}").json() == card


def test_the_load_counts_what_runs_and_what_waits(api: httpx.Client) -> None:
    assert api.get("/load").json()["server_load"] == 0
    body = {"model": MODEL, "prompt": "x", "max_tokens": 8000, "ignore_eos": True}
    request = {"endpoint": "/v1/completions", "body": body}
    jobs = [api.post("/jobs", json=request).json()["id"] for _ in range(3)]

    def one_runs() -> bool:
        (pool,) = api.get("/load").json()["pools"].values()
        return bool(pool == {"running": 1, "waiting": 2})

    wait_for(one_runs, "one runs and two wait")
    assert api.get("/load").json()["server_load"] == 3
    for job in jobs:
        api.post(f"/jobs/{job}/cancel")
    wait_for(lambda: api.get("/load").json()["server_load"] == 0, "all have ended")
