"""What a gateway says of the autoscaler's decisions, to KEDA, Prometheus, operators and clients."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from redis import Redis

from gateway.ops.autoscaler.tick import tick
from shared.store.redis import keys
from shared.store.redis.fleet_registry import Registry
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import wait_for
from tests.redis.conftest import open_queue

MODEL = "org/m"
POOL = "org-pool"
KEY = {"authorization": "Bearer s3cret"}


@pytest.fixture
def gateway(stack: Stack) -> Process:
    return stack.gateway(api_keys="team:s3cret", keepalive_s=0.2)


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, headers=KEY, timeout=30) as client:
        yield client


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


def decide(redis_url: str, text: str = f"{MODEL}=1:3") -> None:
    """What the maintenance process does every other second."""

    async def once() -> None:
        async with open_queue(redis_url) as queue:
            settings = Settings(autoscale=text, pool=POOL)
            registry = Registry(queue.servers.primary)
            await tick(queue, registry, settings, settings.described)

    asyncio.run(once())


def known(api: httpx.Client, name: str = MODEL) -> httpx.Response:
    """The answer once the gateway has a fresh copy."""
    return wait_for(
        lambda: (reply := api.get(f"/autoscale/{name}")).status_code == 200 and reply,  # type: ignore[return-value]
        "the gateway knows the decision",
    )


def make_decision_old(store: Redis) -> None:
    scale = json.loads(store.hget(keys.scale(POOL), "scale"))
    scale["seen"]["at_s"] -= 3600
    store.hset(keys.scale(POOL), "scale", json.dumps(scale))


def test_keda_reads_the_decision_by_model_and_by_pool(api: httpx.Client, redis_url: str) -> None:
    assert api.get(f"/autoscale/{MODEL}").status_code == 404
    decide(redis_url)
    for name in (MODEL, POOL):
        found = known(api, name).json()
        assert found["wanted"] == 1
        assert found["model"] == MODEL
        assert "1 is the minimum" in found["reason"]
        assert found["age_s"] < 60
    reply = api.get("/autoscale/nobody")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_an_old_decision_and_none_are_503(api: httpx.Client, redis_url: str, store: Redis) -> None:
    decide(redis_url)
    known(api)
    make_decision_old(store)
    reply = wait_for(
        lambda: (reply := api.get(f"/autoscale/{MODEL}")).status_code != 200 and reply,
        "the gateway has the old decision",
    )
    assert reply
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "autoscaler_silent"
    assert reply.headers["retry-after"]
    store.delete(keys.scale(POOL))
    wait_for(lambda: "has decided nothing" in api.get(f"/autoscale/{MODEL}").text, "there is none")
    assert api.get(f"/autoscale/{MODEL}").status_code == 503


def test_both_need_a_key(api: httpx.Client, gateway: Process) -> None:
    for path in (f"/autoscale/{MODEL}", "/admin/autoscale"):
        assert httpx.get(gateway.url + path).status_code == 401


def test_prometheus(api: httpx.Client, gateway: Process, redis_url: str, store: Redis) -> None:
    def samples() -> list[str]:
        text = api.get("/metrics").text
        return [line for line in text.splitlines() if line.startswith("flotilla_autoscale_")]

    assert samples() == []
    decide(redis_url)
    known(api)
    assert f'flotilla_autoscale_wanted_workers{{pool="{POOL}"}} 1.0' in samples()
    make_decision_old(store)
    wait_for(lambda: not any("wanted" in line for line in samples()), "it is not wanted any more")
    (age,) = (line for line in samples() if "decision_age" in line)
    assert float(age.rpartition(" ")[2]) > 3000


def test_operators_see_all_of_it(api: httpx.Client, redis_url: str) -> None:
    assert api.get("/admin/autoscale").json() == {"object": "list", "data": []}
    decide(redis_url)
    (pool,) = api.get("/admin/autoscale").json()["data"]
    assert (pool["pool"], pool["model"], pool["wanted"]) == (POOL, MODEL, 1)
    assert pool["workers"] == {}
    assert pool["limits"]["max"] == 3
    assert pool["inputs"]["waiting"] == 0
    assert pool["silent"] is False
    (change,) = pool["history"]
    assert (change["before"], change["wanted"]) == (None, 1)


def test_who_waits_is_told_what_for(api: httpx.Client, redis_url: str) -> None:
    decide(redis_url)
    known(api)
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    job = api.post("/jobs", json={"body": body}).json()
    assert job["wait_reason"] == "no worker runs; one is being started"
    assert job["estimated_wait_s"] is None
    comments: list[str] = []
    enough = threading.Event()

    def listen() -> None:
        with api.stream("POST", "/v1/chat/completions", json=body) as stream:
            for line in stream.iter_lines():
                comments.append(line)
                if "being started" in line:
                    enough.set()
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    assert enough.wait(30), comments
    thread.join()
    assert ": queued, position 2; no worker runs; one is being started" in comments


def test_a_ready_worker_ends_the_wait(stack: Stack, api: httpx.Client, redis_url: str) -> None:
    decide(redis_url)
    known(api)
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    job = api.post("/jobs", json={"body": body}).json()
    assert job["wait_reason"]
    stack.worker(served_model_name=MODEL, pool=POOL)
    done: Any = wait_for(
        lambda: (found := api.get(f"/jobs/{job['id']}").json())["state"] == "completed" and found,
        "the job is done",
    )
    assert "wait_reason" not in done
    wait_for(lambda: _worker(redis_url)["finished"] == 1, "the worker has announced it")
    announced = _worker(redis_url)
    assert announced["start_s"] > 0
    assert announced["job_seconds"] > 0
    assert announced["request_bytes"] == len(json.dumps(body, separators=(",", ":")))  # as it came
    assert announced["prompt_tokens"] == done["usage"]["prompt_tokens"]
    assert announced["completion_tokens"] == 4


def _worker(redis_url: str) -> dict[str, Any]:
    with Redis.from_url(redis_url) as client:
        (worker_id,) = client.smembers(keys.WORKERS)
        raw = client.hgetall(keys.worker(worker_id.decode()))
    return {name.decode(): json.loads(value) for name, value in raw.items()}
