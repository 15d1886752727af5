"""Answers of the gateway: probes, invalid requests, streams that wait, and the access log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, chat, unread
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A gateway, and one worker with one slot: a second job waits."""
    module_stack.worker(sim_step_ms=10, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    return module_stack.gateway(keepalive_s=600)  # only the early comment comes within a test


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client


def body(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return chat(**{"ignore_eos": True, "max_tokens": max_tokens} | fields)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture
def busy(api: httpx.Client) -> Iterator[None]:
    """Takes the only slot."""
    job = api.post("/jobs", json={"body": body(6000)}).json()
    wait_for(
        lambda: api.get(f"/jobs/{job['id']}").json()["state"] == "in_progress", "it is running"
    )
    yield
    api.post(f"/jobs/{job['id']}/cancel")


def test_vllms_version(api: httpx.Client) -> None:
    assert re.fullmatch(r"\d+\.\d+.*", api.get("/version").json()["version"])


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/jobs", "/version"])
def test_head(api: httpx.Client, path: str) -> None:
    whole, head = api.get(path), api.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert api.head("/nowhere").status_code == 404
    assert api.head(CHAT).status_code == 405


def test_a_route_that_is_not_there_has_another_code_than_an_unknown_model(
    api: httpx.Client,
) -> None:
    unknown = api.get("/v1/nothing")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "unknown_route")
    no_model = api.get("/v1/models/nothing")
    assert (no_model.status_code, error_of(no_model)["code"]) == (404, "model_not_found")


def test_an_unknown_field_of_a_job_is_refused(api: httpx.Client) -> None:
    answer = api.post("/jobs", json={"body": body(), "webhook": "http://x"})
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("invalid_request_error", None)
    assert error["param"] == "webhook"
    known = {"endpoint", "body", "lane", "on_disconnect", "metadata", "webhooks", "max_wait_s"}
    known |= {"deadline_s", "queue_deadline_s", "run_deadline_s"}
    assert known <= set(re.findall(r"\w+", error["message"]))


def test_an_unknown_job_is_not_found(api: httpx.Client) -> None:
    answer = api.get("/jobs/job_nothing")
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"
    message = error_of(answer)["message"]
    assert "24 h" in message
    assert "15 min" in message


def test_a_last_event_id_after_the_last_event_is_refused(api: httpx.Client) -> None:
    job = api.post("/jobs", json={"body": body()}).json()
    done = api.get(f"/jobs/{job['id']}/events").text
    *_, last, end = re.findall(r"^id: (.*)$", done, re.MULTILINE)
    path = f"/jobs/{job['id']}/events"
    assert end == "end"
    assert api.get(path, headers={"last-event-id": end}).status_code == 204
    answer = api.get(path, headers={"last-event-id": "999999"})
    assert answer.status_code == 400
    of_end = int(last) + 1
    assert f"the last event, {of_end}." in error_of(answer)["message"]
    # As if the client had got an entry with this number, which Redis then lost.
    assert '"stream_reset"' in api.get(path, headers={"last-event-id": str(of_end)}).text


@pytest.mark.usefixtures("busy")
def test_a_stream_of_a_queued_job_begins_with_an_early_comment(api: httpx.Client) -> None:
    with api.stream("POST", CHAT, json=body(stream=True)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-flotilla-queue-position"] == "1"
        assert re.fullmatch(r": queued, position 1(, starts in .+)?", next(answer.iter_lines()))


def lines(gateway: Process, having: str) -> list[str]:
    return [line for line in gateway.log.read_text().splitlines() if having in line]


def line(gateway: Process, having: str) -> dict[str, Any]:
    (found,) = wait_for(lambda: lines(gateway, having), f"a line with {having}")
    fields: dict[str, Any] = json.loads(found)
    assert (fields["level"], fields["logger"]) == ("info", "flotilla.access")
    assert fields["seconds"] > 0
    return fields


def test_fields_of_the_access_log(api: httpx.Client, gateway: Process) -> None:
    secret = {"authorization": "Bearer sk-secret"}
    plain = api.post(CHAT, json=body(), headers={"x-request-id": "plain-1", **secret})
    stream = api.post(CHAT, json=body(stream=True), headers={"x-request-id": "stream-1"})
    api.post(CHAT, json={"model": "none"}, headers={"x-request-id": "none-1"})
    job = api.post("/jobs", json={"body": body()})
    api.get("/jobs?api_key=sk-secret", headers={"x-request-id": "query-1"})
    api.get("/healthz", headers={"x-request-id": "probe-1"})
    api.get("/nowhere?sk-secret", headers={"x-request-id": "nowhere-1"})
    for answer, name in ((plain, "plain-1"), (stream, "stream-1")):
        found = line(gateway, name)
        assert found["message"] == f"POST {CHAT} 200"
        assert found["job_id"] == answer.headers["x-flotilla-job-id"]
        assert found["tenant"] == "default"
    refused = line(gateway, "none-1")
    assert (refused["status"], refused["error"]) == (404, "model_not_found")
    submitted = line(gateway, job.json()["id"])
    assert submitted["message"] == "POST /jobs 202"
    assert submitted["request_id"].startswith("req_")
    assert line(gateway, "nowhere-1")["message"] == "GET /nowhere 404"
    assert line(gateway, "query-1")["message"] == "GET /jobs 400"
    assert lines(gateway, "probe-1") == []
    assert lines(gateway, "sk-secret") == []
    assert lines(gateway, "hello") == []


@pytest.mark.usefixtures("busy")
def test_a_client_that_disconnected_is_in_the_access_log(
    api: httpx.Client, gateway: Process
) -> None:
    with unread(gateway, body(), headers={"x-request-id": "left-1"}):
        wait_for(
            lambda: api.get("/jobs", params={"state": "queued"}).json()["data"], "its job waits"
        )
    found = line(gateway, "left-1")
    assert (found["status"], found["error"]) == (499, "client_left")
