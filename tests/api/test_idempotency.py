"""Requests with the same Idempotency-Key are one job, on any gateway."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer
from tests.harness.waiting import wait_for

TEAM_A, TEAM_B = bearer("a"), bearer("b")


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    """Two gateways and one worker."""
    module_stack.worker(sim_step_ms=10, sim_step_us_per_seq=0)
    keys = "team-a:a,team-b:b"
    return module_stack.gateway(api_keys=keys), module_stack.gateway(api_keys=keys)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key of this test's own."""
    return f'"{request.node.name}"'


def request_body(max_tokens: int = 20, **fields: Any) -> dict[str, Any]:
    return chat(**{"stream": True, "ignore_eos": True, "max_tokens": max_tokens} | fields)


def post(gateway: Process, key: str, path: str = CHAT, **more: Any) -> httpx.Response:
    headers = TEAM_A | {"idempotency-key": key} | more.pop("headers", {})
    body = more or request_body()
    return http.post(gateway.url + path, json=body, headers=headers, timeout=60)


def replayed(answer: httpx.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


def without_comments(body: bytes) -> bytes:
    return re.sub(rb"(?m)^:.*\n", b"", body)


@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_is_given_again(fleet: tuple[Process, Process], key: str, stream: bool) -> None:
    body = request_body(stream=stream)
    answers = [post(fleet[n % 2], key, **body) for n in range(4)]
    assert [replayed(answer) for answer in answers] == [False, True, True, True]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-flotilla-job-id"] for answer in answers}) == 1
    assert len({answer.headers["content-type"] for answer in answers}) == 1
    assert len({without_comments(answer.content) for answer in answers}) == 1 or not stream
    assert len({answer.content for answer in answers}) == 1 or stream


def test_a_running_stream_is_joined_from_its_first_chunk(
    fleet: tuple[Process, Process], key: str
) -> None:
    headers, body = TEAM_A | {"idempotency-key": key}, request_body(150)
    with http.stream("POST", fleet[0].url + CHAT, json=body, headers=headers) as first:
        parts = first.iter_raw()
        begun = next(parts)
        joined = post(fleet[1], key, **body)
        whole = begun + b"".join(parts)
    assert replayed(joined)
    assert without_comments(joined.content) == without_comments(whole)
    assert without_comments(whole).endswith(b"data: [DONE]\n\n")


def test_first_calls_at_once_on_two_gateways_make_one_job(
    fleet: tuple[Process, Process], key: str
) -> None:
    answers: list[httpx.Response] = []

    def call(number: int) -> None:
        answers.append(post(fleet[number % 2], key))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12
    assert len({answer.headers["x-flotilla-job-id"] for answer in answers}) == 1
    assert sum(not replayed(answer) for answer in answers) == 1
    assert len({without_comments(answer.content) for answer in answers}) == 1


def test_another_body_is_refused(fleet: tuple[Process, Process], key: str) -> None:
    post(fleet[0], key)
    refused = post(fleet[1], key, **request_body(21))
    assert refused.status_code == 422
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert refused.headers["x-should-retry"] == "false"


def test_tenants_and_paths_have_their_own_keys(fleet: tuple[Process, Process], key: str) -> None:
    ids = {post(fleet[0], key).headers["x-flotilla-job-id"]}
    ids.add(post(fleet[0], key, headers=TEAM_B).headers["x-flotilla-job-id"])
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
    ids.add(post(fleet[0], key, "/v1/completions", **body).headers["x-flotilla-job-id"])
    job = {"endpoint": CHAT, "body": request_body()}
    ids.add(post(fleet[0], key, "/jobs", **job).headers["x-flotilla-job-id"])
    assert len(ids) == 4


def test_jobs_are_joined_too(fleet: tuple[Process, Process], key: str) -> None:
    body = {"endpoint": CHAT, "body": request_body(stream=False)}
    first, second = (post(gateway, key, "/jobs", **body) for gateway in fleet)
    assert (first.status_code, second.status_code) == (202, 202)
    assert (replayed(first), replayed(second)) == (False, True)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["location"] == f"/jobs/{first.json()['id']}"
    other = body | {"lane": "flex"}
    assert post(fleet[0], key, "/jobs", **other).status_code == 422


def test_an_endpoints_refusal_is_given_again(fleet: tuple[Process, Process], key: str) -> None:
    first, second = (post(gateway, key, **request_body(-1)) for gateway in fleet)
    assert (first.status_code, second.status_code) == (400, 400)
    assert first.content == second.content
    assert replayed(second)


def test_a_request_that_made_no_job_takes_no_key(fleet: tuple[Process, Process], key: str) -> None:
    assert post(fleet[0], key, **request_body(stream="x")).status_code == 400
    assert post(fleet[0], key, **request_body(model="unknown")).status_code == 404
    answer = post(fleet[0], key)
    assert (answer.status_code, replayed(answer)) == (200, False)


def test_the_key_of_a_job_without_a_client_is_free(
    fleet: tuple[Process, Process], key: str
) -> None:
    headers = TEAM_A | {"idempotency-key": key, "x-flotilla-on-disconnect": "cancel"}
    body = request_body(5000)
    with http.stream("POST", fleet[0].url + CHAT, json=body, headers=headers) as first:
        next(first.iter_raw())
        job_id = first.headers["x-flotilla-job-id"]
    path = f"{fleet[0].url}/jobs/{job_id}"
    wait_for(lambda: http.get(path, headers=TEAM_A).json()["state"] == "cancelled", "cancelled")
    with http.stream("POST", fleet[1].url + CHAT, json=body, headers=headers) as second:
        assert second.headers["x-flotilla-job-id"] != job_id
        assert "idempotent-replayed" not in second.headers


@pytest.mark.parametrize("key_sent", ["", "a b", "x" * 256, "t\tt"])
@pytest.mark.parametrize("path", [CHAT, "/jobs"])
def test_an_invalid_key_is_refused(
    fleet: tuple[Process, Process], key_sent: str, path: str
) -> None:
    body = request_body() if path == CHAT else {"endpoint": CHAT, "body": request_body()}
    refused = post(fleet[0], key_sent, path, **body)
    assert refused.status_code == 400
    assert "Idempotency-Key" in json.loads(refused.content)["error"]["message"]


def test_two_keys_are_refused(fleet: tuple[Process, Process]) -> None:
    headers = [*TEAM_A.items(), ("idempotency-key", "a"), ("idempotency-key", "b")]
    refused = http.post(fleet[0].url + CHAT, json=request_body(), headers=headers)
    assert refused.status_code == 400
