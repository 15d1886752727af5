"""Refusals at the door over HTTP, and what OpenAI's unmodified SDK does with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

CHAT = "/v1/chat/completions"
DEPTH = 4
JOB_S = 0.5


def body(tokens: int = 100, **fields: Any) -> dict[str, Any]:
    return {
        "model": "simulated",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A fleet of one worker with one slot, which has done some jobs of half a second."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    gateway = stack.gateway(max_queue_depth=DEPTH, max_waiting_jobs=2, api_keys="a:1,b:2,c:3,d:4")
    for _ in range(4):
        answer = httpx.post(gateway.url + CHAT, headers=key("1"), json=body(), timeout=60)
        assert answer.status_code == 200
    wait_for(lambda: _estimates(gateway), "the gateway knows the pace of the worker")
    yield gateway
    stack.close()


def _estimates(gateway: Process) -> bool:
    """Whether a job that waits has an estimate: the gateway has read the worker's pace."""
    jobs = [
        httpx.post(f"{gateway.url}/jobs", headers=key(secret), json={"body": body()}).json()
        for secret in "12"
    ]
    return any(job.get("estimated_wait_s") is not None for job in jobs)


def key(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        wait_for(lambda: _is_idle(client), "nothing runs")
        yield client


def _is_idle(api: httpx.Client) -> bool:
    jobs = [api.get("/jobs", headers=key(each)).json()["data"] for each in "1234"]
    return all(job["state"] == "completed" for each in jobs for job in each)


def fill(api: httpx.Client, tokens: int = 100) -> None:
    """One job runs, and the lane is full."""
    for secret in ("1", "1", "1", "2", "2"):
        answer = api.post("/jobs", headers=key(secret), json={"body": body(tokens)})
        assert answer.status_code == 202, answer.text


def test_openais_sdk_waits_for_as_long_as_it_is_told(api: httpx.Client) -> None:
    fill(api)
    refused = api.post(CHAT, headers=key("3"), json=body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    told_s = int(refused.headers["retry-after"])
    assert 1 <= told_s < 20
    assert "4 jobs wait" in refused.json()["error"]["message"]
    assert "There will be room in about" in refused.json()["error"]["message"]
    began = time.monotonic()
    with openai.OpenAI(base_url=f"{api.base_url}/v1", api_key="3", timeout=60) as sdk:
        assert sdk.max_retries == 2
        raw = sdk.chat.completions.with_raw_response.create(**_sdk_body())
    assert raw.parse().choices[0].message.content
    assert 1 <= raw.retries_taken <= 2
    assert time.monotonic() - began >= 1  # without a time it would come back after 0.5 s


def _sdk_body() -> dict[str, Any]:
    fields = body()
    ours = {"ignore_eos": fields.pop("ignore_eos")}
    return {**fields, "extra_body": ours}


def test_many_clients_of_the_sdk_that_are_refused_are_served_in_the_end(
    api: httpx.Client,
) -> None:
    fill(api)

    def ask(secret: str) -> int:
        with openai.OpenAI(
            base_url=f"{api.base_url}/v1", api_key=secret, timeout=60, max_retries=10
        ) as sdk:
            raw = sdk.chat.completions.with_raw_response.create(**_sdk_body())
        assert raw.parse().choices[0].message.content
        return raw.retries_taken

    with ThreadPoolExecutor(8) as pool:
        retries = list(pool.map(ask, "33334444"))
    assert sum(retries) > 0


def test_a_tenants_own_bound_is_429(api: httpx.Client) -> None:
    for _ in range(3):
        assert api.post("/jobs", headers=key("1"), json={"body": body()}).status_code == 202
    refused = api.post("/jobs", headers=key("1"), json={"body": body()})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_waiting")
    assert int(refused.headers["retry-after"]) >= 1
    assert "x-should-retry" not in refused.headers
    assert api.post("/jobs", headers=key("2"), json={"body": body()}).status_code == 202


def test_a_job_whose_deadline_cant_be_met_is_refused_at_the_door(api: httpx.Client) -> None:
    fill(api, tokens=200)
    limits: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"x-flotilla-queue-deadline": "0.1"}, {}),
        ({"x-flotilla-max-wait": "0.1"}, {}),
        ({}, {"flotilla": {"max_wait_s": 0.1}}),
    ]
    for headers, fields in limits:
        began = time.monotonic()
        refused = api.post(CHAT, headers=key("3") | headers, json=body(**fields))
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "deadline_unreachable",
        )
        assert "would wait for about" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert time.monotonic() - began < 10
    for deadline in ({"deadline_s": 0.1}, {"queue_deadline_s": 0.1}, {"max_wait_s": 0.1}):
        refused = api.post("/jobs", headers=key("3"), json={"body": body()} | deadline)
        assert refused.json()["error"]["code"] == "deadline_unreachable"


def test_a_call_that_waits_for_no_longer_than_it_may_is_answered(api: httpx.Client) -> None:
    answer = api.post("/jobs", headers=key("3"), json={"body": body(), "max_wait_s": 20}).json()
    assert answer["queue_deadline_s"] == 20
    fields = {"flotilla": {"max_wait_s": 30}}
    assert api.post(CHAT, headers=key("3"), json=body(**fields)).status_code == 200


def test_a_call_whose_key_has_made_a_job_gets_its_answer(api: httpx.Client) -> None:
    named = key("3") | {"idempotency-key": "overload-1"}
    first = api.post(CHAT, headers=named, json=body())
    fill(api, tokens=200)
    again = api.post(CHAT, headers=named | {"x-flotilla-max-wait": "0.1"}, json=body())
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
