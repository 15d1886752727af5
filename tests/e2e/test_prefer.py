"""`Prefer: respond-async` and `Prefer: wait=N` on the endpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.api.endpoints import ENDPOINTS
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer

MODEL = "simulated"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A gateway and a worker whose tokens take 20 ms."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    stack.worker(sim_step_ms=20, sim_step_us_per_seq=0)
    yield stack.gateway(disconnect_grace_s=0)
    stack.close()


def chat(max_tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    fixed = {"max_tokens": max_tokens, "ignore_eos": True}
    return {"model": MODEL, "messages": messages} | fixed | fields


def post(gateway: Process, prefer: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    sent = {"prefer": prefer} | {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(gateway.url + CHAT, json=body, headers=sent, timeout=30)


def ended(gateway: Process, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = http.get(f"{gateway.url}/jobs/{job_id}?wait=30", timeout=40).json()
    while job["state"] in {"queued", "in_progress"}:
        job = http.get(f"{gateway.url}/jobs/{job_id}?wait=30", timeout=40).json()
    return job


@pytest.mark.parametrize("stream", [False, True])
def test_respond_async_answers_with_the_job_which_goes_on(gateway: Process, stream: bool) -> None:
    began = time.monotonic()
    answer = post(gateway, "respond-async", chat(100, stream=stream))
    took_s = time.monotonic() - began
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "respond-async"
    job = answer.json()
    assert (job["object"], job["stream"]) == ("job", stream)
    assert job["state"] in {"queued", "in_progress"}
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert answer.headers["x-flotilla-job-id"] == job["id"]
    assert took_s < 2.0, "100 tokens take 2 s"
    end = ended(gateway, job["id"])
    assert (end["state"], end["usage"]["completion_tokens"]) == ("completed", 100)
    assert end["expires_at"] - end["finished_at"] == pytest.approx(86_400, abs=1), "as of /jobs"
    result = http.get(f"{gateway.url}/jobs/{job['id']}/result")
    assert result.status_code == 200
    assert result.headers["content-type"].startswith(
        "text/event-stream" if stream else "application/json"
    )


def test_an_answer_in_time_is_the_endpoints_own(gateway: Process) -> None:
    for prefer in ("wait=20", "respond-async, wait=20"):
        answer = post(gateway, prefer, chat(2))
        assert answer.status_code == 200
        assert answer.json()["object"] == "chat.completion"
        assert answer.headers["preference-applied"] == "wait=20"
    refused = post(gateway, "wait=20", chat(-1))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]


@pytest.mark.parametrize("prefer", ["wait=1", "wait=1, respond-async", "wait=0"])
def test_an_answer_that_takes_longer_becomes_a_job(gateway: Process, prefer: str) -> None:
    began = time.monotonic()
    answer = post(gateway, prefer, chat(150))
    took_s = time.monotonic() - began
    assert answer.status_code == 202, answer.text
    assert set(answer.headers["preference-applied"].split(", ")) == set(prefer.split(", "))
    assert took_s >= (0 if prefer == "wait=0" else 1.0)
    assert ended(gateway, answer.json()["id"])["state"] == "completed", "it was not cancelled"


def test_a_stream_begins_at_once_whatever_it_is_to_wait_for(gateway: Process) -> None:
    answer = post(gateway, "wait=1", chat(3, stream=True))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "preference-applied" not in answer.headers
    assert answer.text.endswith("data: [DONE]\n\n")


def test_other_preferences_are_ignored(gateway: Process) -> None:
    answer = post(gateway, "return=minimal, wait=soon", chat(2))
    assert answer.status_code == 200
    assert "preference-applied" not in answer.headers


def test_a_repeated_request_gets_the_same_job(gateway: Process) -> None:
    first, second = (
        post(gateway, "respond-async", chat(20), idempotency_key="prefer") for _ in range(2)
    )
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotent-replayed"] == "true"
    third = post(gateway, "wait=30", chat(20), idempotency_key="prefer")
    assert third.status_code == 200
    assert third.headers["x-flotilla-job-id"] == first.json()["id"]


def test_errors_before_the_queue_are_answered_as_ever(gateway: Process) -> None:
    assert post(gateway, "respond-async", chat(2, model="unknown")).status_code == 404
    assert post(gateway, "respond-async", chat(2, stream="x")).status_code == 400


def test_every_endpoint_has_it_in_its_description(gateway: Process) -> None:
    described = json.loads(http.get(f"{gateway.url}/openapi.json").text)
    for path in ENDPOINTS:
        operation = described["paths"][path]["post"]
        assert "Prefer" in {each["name"] for each in operation["parameters"]}
        answers = operation["responses"]
        assert answers["202"]["content"]["application/json"]["schema"]["$ref"].endswith("/Job")
