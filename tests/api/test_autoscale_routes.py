"""What a gateway says of the autoscaler's decisions, to KEDA, operators and clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

NAME = "org/m"
POOL = "org-pool"
KEY = {"authorization": "Bearer s3cret"}
OPERATOR = {"authorization": "Bearer 0perator"}
GATEWAY = {"api_keys": "team:s3cret", "admin_keys": "ops:0perator", "keepalive_s": 0.2}
SCALING = {"autoscale": f"{NAME}=1:3", "pool": POOL}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """Of a fleet whose autoscaler has decided about a pool without workers."""
    gateway = module_stack.gateway(**GATEWAY)
    module_stack.maintenance(**SCALING)
    with client_of(gateway) as api:
        wait_for(lambda: api.get(f"/autoscale/{NAME}").status_code == 200, "it has decided")
    return gateway


def client_of(gateway: Process) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, headers=KEY, timeout=60)


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with client_of(gateway) as client:
        yield client


@pytest.fixture
def own_stack(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """A fleet of its own."""
    with contextlib.closing(Stack(own_redis.url, tmp_path)) as stack:
        yield stack


def test_keda_reads_the_decision_by_model_and_by_pool(api: httpx.Client) -> None:
    for name in (NAME, POOL):
        found = api.get(f"/autoscale/{name}").json()
        assert found["wanted"] == 1
        assert found["model"] == NAME
        assert "minimum" in found["reason"]
        assert found["age_s"] < 60
    reply = api.get("/autoscale/nobody")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_both_need_a_key(gateway: Process) -> None:
    for path in (f"/autoscale/{NAME}", "/admin/autoscale"):
        assert http.get(gateway.url + path).status_code == 401


def test_operators_see_all_of_it(api: httpx.Client) -> None:
    (pool,) = api.get("/admin/autoscale").json()["data"]
    assert (pool["pool"], pool["model"], pool["wanted"]) == (POOL, NAME, 1)
    assert pool["workers"] == {}
    assert pool["limits"]["max"] == 3
    assert pool["inputs"]["waiting"] == 0
    assert pool["silent"] is False
    (change,) = pool["history"]
    assert (change["before"], change["wanted"]) == (None, 1)


def test_without_an_autoscaler_and_once_it_is_silent(own_stack: Stack) -> None:
    gateway = own_stack.gateway(**GATEWAY)

    with client_of(gateway) as api:
        assert api.get(f"/autoscale/{NAME}").status_code == 404
        assert api.get("/admin/autoscale").json() == {"object": "list", "data": []}
        own_stack.worker()
        maintenance = own_stack.maintenance(**SCALING)
        wait_for(lambda: api.get(f"/autoscale/{NAME}").status_code == 200, "it has decided")
        unnamed = wait_for(
            lambda: (
                found if (found := api.get("/autoscale/simulated")).status_code != 404 else None
            ),
            "the pool of the worker is known",
        )
        assert unnamed is not None
        assert (unnamed.status_code, unnamed.json()["error"]["code"]) == (503, "autoscaler_silent")
        maintenance.kill()
        wait_for(lambda: api.get(f"/autoscale/{NAME}").status_code == 503, "it is old")
        reply = api.get(f"/autoscale/{NAME}")
        assert reply.json()["error"]["code"] == "autoscaler_silent"
        assert reply.headers["retry-after"]
        (pool,) = api.get("/admin/autoscale").json()["data"]
        assert pool["silent"] is True


def test_an_operators_range_holds_until_the_settings_have_another_one(own_stack: Stack) -> None:
    gateway = own_stack.gateway(**GATEWAY)
    maintenance = own_stack.maintenance(**SCALING)
    path = f"/admin/autoscale/{NAME}"
    with httpx.Client(base_url=gateway.url, headers=OPERATOR, timeout=60) as operator:

        def limits() -> tuple[int, int] | None:
            for pool in operator.get("/admin/autoscale").json()["data"]:
                return pool["limits"]["min"], pool["limits"]["max"]
            return None

        wait_for(lambda: limits() == (1, 3), "it has decided")
        assert operator.put("/admin/autoscale/nobody", params={"min": 1}).status_code == 404
        refused = http.put(gateway.url + path, headers=KEY, params={"min": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
        for wrong in ({"min": 3, "max": 2}, {"max": 0}, {"min": -1}, {"least": 1}):
            assert operator.put(path, params=wrong).status_code == 400
        done = operator.put(path, params={"min": 2})
        assert done.json() == {"pool": POOL, "min": 2, "max": 3}
        wait_for(lambda: limits() == (2, 3), "the autoscaler has it")
        assert operator.put(f"/admin/autoscale/{POOL}", params={"min": 0, "max": 2}).is_success
        wait_for(lambda: limits() == (0, 2), "the autoscaler has it")
        maintenance.kill()
        own_stack.maintenance(**SCALING | {"autoscale": f"{NAME}=1:5"})
        wait_for(lambda: limits() == (1, 5), "new settings end it")


def test_who_waits_is_told_what_for(own_stack: Stack) -> None:
    """Until a worker is ready."""
    gateway = own_stack.gateway(**GATEWAY)
    own_stack.maintenance(**SCALING)
    with client_of(gateway) as api:
        wait_for(lambda: api.get(f"/autoscale/{NAME}").status_code == 200, "it has decided")
        body = chat("Hi", model=NAME, max_tokens=4, ignore_eos=True)
        job = api.post("/jobs", json={"body": body}).json()
        assert job["wait_reason"] == "no worker runs; one is being started"
        assert job["estimated_wait_s"] is None
        comments: list[str] = []
        enough = threading.Event()

        def listen() -> None:
            sent = body | {"stream": True}
            with api.stream("POST", "/v1/chat/completions", json=sent) as stream:
                for line in stream.iter_lines():
                    comments.append(line)
                    if "being started" in line:
                        enough.set()
                        return

        thread = threading.Thread(target=listen)
        thread.start()
        assert enough.wait(60), comments
        thread.join()
        assert ": queued, position 2; no worker runs; one is being started" in comments

        def waiting() -> list[str]:
            found = api.get("/jobs", params={"state": "queued"}).json()["data"]
            return [each["id"] for each in found]

        wait_for(lambda: waiting() == [job["id"]], "the call of who has left is cancelled")
        own_stack.worker(served_model_name=NAME, pool=POOL)
        done = wait_for(lambda: completed(api, job["id"]), "the job is done")
        assert done is not None
        assert "wait_reason" not in done

        def inputs() -> dict[str, Any] | None:
            (pool,) = api.get("/admin/autoscale").json()["data"]
            found: dict[str, Any] = pool["inputs"]
            return found if found["job_s"] else None

        seen = wait_for(inputs, "the autoscaler knows how long jobs take")
        assert seen is not None
        assert seen["start_s"] > 0


def completed(api: httpx.Client, job_id: str) -> dict[str, Any] | None:
    found: dict[str, Any] = api.get(f"/jobs/{job_id}").json()
    return found if found["state"] == "completed" else None
