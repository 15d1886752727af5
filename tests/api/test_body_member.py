"""The member `flotilla` of a body is the store's: a client's is refused, so that no tenant can name
what belongs to another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, chat
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer
from tests.harness.waiting import wait_for

RESPONSE = {"model": MODEL, "input": "secret words", "max_output_tokens": 2}
CALLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat(max_tokens=2)),
    ("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2}),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", chat(max_tokens=2)),
    ("/v1/embeddings", {"model": MODEL, "input": "x"}),
    ("/tokenize", {"model": MODEL, "prompt": "x"}),
    ("/invocations", chat(max_tokens=2)),
    (f"/predictions/{MODEL}/v1/chat/completions", chat(max_tokens=2)),
]


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    storage = str(module_stack.folder / "files")
    module_stack.worker(sim_step_ms=1, sim_step_us_per_seq=0)
    module_stack.maintenance(storage_url=storage)
    return module_stack.gateway(api_keys="team:k-team,other:k-other", storage_url=storage)


def client_of(gateway: Process, key: str) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, headers=bearer(key), timeout=60)


@pytest.fixture(scope="module")
def team(gateway: Process) -> Iterator[httpx.Client]:
    with client_of(gateway, "k-team") as client:
        yield client


@pytest.fixture(scope="module")
def other(gateway: Process) -> Iterator[httpx.Client]:
    with client_of(gateway, "k-other") as client:
        yield client


def items(team: httpx.Client, response_id: str) -> str:
    """The input of a response, as its own tenant sees it."""
    answer = team.get(f"/v1/responses/{response_id}/input_items")
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def last(team: httpx.Client) -> str:
    """The id of a response that continues another one, both of the team."""
    first = team.post("/v1/responses", json=RESPONSE).json()["id"]
    more = RESPONSE | {"previous_response_id": first, "input": "further words"}
    return str(team.post("/v1/responses", json=more).json()["id"])


def forged(response_id: str) -> list[Any]:
    of_store = {"previous_response_id": response_id, "n_items": 2}
    return [
        {"response": of_store | {"previous_head_bytes": 10, "fields_bytes": 10}},
        {"response": {}},
        {"on_disconnect": "keep"},
        {},
        None,
        "x",
    ]


def check(answer: httpx.Response) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "`flotilla`" in error["message"]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_call_with_it_is_refused(
    team: httpx.Client, other: httpx.Client, last: str, path: str, body: dict[str, Any]
) -> None:
    before = items(team, last)
    for member in forged(last):
        check(other.post(path, json={"flotilla": member, **body}))
    escaped = json.dumps({**body, "flotilla": {}}).replace("flotilla", "fl\\u006ftilla")
    kind = {"content-type": "application/json"}
    check(other.post(path, content=escaped, headers=kind))
    assert items(team, last) == before


def test_a_job_and_a_retry_with_it_are_refused(other: httpx.Client, last: str) -> None:
    job = other.post("/jobs", json={"body": chat(max_tokens=8000, ignore_eos=True)}).json()["id"]
    other.post(f"/jobs/{job}/cancel")
    for member in forged(last):
        body = {"flotilla": member, **chat(max_tokens=2)}
        check(other.post("/jobs", json={"body": body}))
        responses = {"endpoint": "/v1/responses", "body": {"flotilla": member, **RESPONSE}}
        check(other.post("/jobs", json=responses))
        check(other.post(f"/jobs/{job}/retry", json={"body": body}))


def test_a_form_with_it_is_refused(other: httpx.Client) -> None:
    form: dict[str, Any] = {
        "data": {"model": MODEL, "flotilla": '{"response": {}}'},
        "files": {"file": ("a.wav", b"audio")},
    }
    check(other.post("/v1/audio/transcriptions", **form))
    check(other.post("/jobs?endpoint=/v1/audio/transcriptions", **form))


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/responses"])
def test_a_line_of_a_batch_with_it_fails(
    team: httpx.Client, other: httpx.Client, last: str, endpoint: str
) -> None:
    before = items(team, last)
    fields = chat(max_tokens=2) if endpoint == CHAT else RESPONSE | {"store": False}
    bodies = [{"flotilla": member, **fields} for member in forged(last)]
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate([fields, *bodies])
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    sent: dict[str, Any] = {"files": {"file": ("in.jsonl", data)}, "data": {"purpose": "batch"}}
    file = other.post("/v1/files", **sent).json()["id"]
    asked = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
    batch = other.post("/v1/batches", json=asked).json()["id"]
    wait_for(lambda: other.get(f"/v1/batches/{batch}").json()["completed_at"], "it has ended")
    counts = other.get(f"/v1/batches/{batch}").json()["request_counts"]
    assert counts == {"total": len(lines), "completed": 1, "failed": len(bodies)}
    for line in other.get(f"/v1/batches/{batch}/errors").text.splitlines():
        response = json.loads(line)["response"]
        assert response["status_code"] == 400
        assert response["body"]["error"]["param"] == "flotilla"
    assert items(team, last) == before
