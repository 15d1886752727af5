"""Deadlines over HTTP and with OpenAI's SDK: what a client sees when one passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.harness.client import CHAT, chat, http, job, submit
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

QUEUE, RUN = "x-flotilla-queue-deadline", "x-flotilla-run-deadline"


def body(tokens: int, **fields: Any) -> dict[str, Any]:
    return chat(max_tokens=tokens, **fields)


LONG = {"ignore_eos": True}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A fleet of one worker with one slot: a second job waits."""
    module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    return module_stack.gateway()


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client


@pytest.fixture
def busy(own_stack: Stack) -> Process:
    """The gateway of a fleet whose only slot is taken. It has answered nothing yet, so the
    gateway has no estimate of a wait."""
    own_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    gateway = own_stack.gateway()
    job_id = submit(gateway, body(8000, **LONG))
    wait_for(lambda: job(gateway, job_id)["state"] == "in_progress", "it runs")
    return gateway


@pytest.fixture
def sdk(gateway: Process) -> Iterator[openai.OpenAI]:
    with sdk_of(gateway) as client:
        yield client


def sdk_of(gateway: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=60)


def test_a_call_that_waits_past_its_queue_deadline_is_504_and_was_not_started(
    busy: Process,
) -> None:
    answer = http.post(busy.url + CHAT, headers={QUEUE: "0.5"}, json=body(2000, **LONG))
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "queue_deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    expired = job(busy, answer.headers["x-flotilla-job-id"])
    state = expired["state"], expired["attempts"], expired["queue_deadline_s"]
    assert state == ("expired", [], 0.5)
    assert expired["finished_at"] - expired["created_at"] >= 0.5


def test_sdk_streamed_call_past_its_queue_deadline(busy: Process) -> None:
    with sdk_of(busy) as sdk, pytest.raises(openai.APIError) as raised:
        list(sdk.chat.completions.create(**body(4), stream=True, extra_headers={QUEUE: "1"}))
    assert raised.value.code == "queue_deadline_exceeded"


def test_sdk_streamed_call_past_its_run_deadline_has_its_output_first(
    sdk: openai.OpenAI, api: httpx.Client
) -> None:
    stream = sdk.chat.completions.create(
        **body(8000), extra_body=LONG, stream=True, extra_headers={RUN: "0.5"}
    )
    text = ""
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert raised.value.code == "run_deadline_exceeded"
    assert text.startswith("[simulated]")
    job = api.get(f"/jobs/{stream.response.headers['x-flotilla-job-id']}").json()
    assert (job["state"], job["text"]) == ("expired", text)


def test_calls_within_their_deadlines_are_answered(api: httpx.Client) -> None:
    for headers in ({QUEUE: "30", RUN: "60.5"}, {QUEUE: "30"}, {RUN: "2592000"}):
        answer = api.post(CHAT, headers=headers, json=body(4))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "1e3", "0.0001", "2592001", "1,2", "nan"])
@pytest.mark.parametrize("header", [QUEUE, RUN])
def test_a_wrong_header_is_400(api: httpx.Client, header: str, value: str) -> None:
    for path, sent in ((CHAT, body(4)), ("/jobs", {"body": body(4)})):
        answer = api.post(path, headers={header: value}, json=sent)
        assert answer.status_code == 400, (path, value)
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (header, "invalid_request_error")


@pytest.mark.parametrize("field", ["deadline_s", "queue_deadline_s", "run_deadline_s"])
@pytest.mark.parametrize("value", [0, -1, "5", 2592001, True, [1]])
def test_a_wrong_field_is_400(api: httpx.Client, field: str, value: Any) -> None:
    answer = api.post("/jobs", json={"body": body(4), field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)


@pytest.fixture
def own_stack(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """Without the worker of the other tests, which would take the job."""
    stack = Stack(own_redis.url, tmp_path)
    yield stack
    stack.close()


def test_the_run_deadline_of_a_continued_job_counts_from_its_first_start(own_stack: Stack) -> None:
    stack = own_stack
    gateway = stack.gateway()
    slow = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}
    victim = stack.worker(**slow)
    with httpx.Client(base_url=gateway.url, timeout=60) as api:
        fields = {"body": body(8000, **LONG), "run_deadline_s": 8.0}
        job_id = api.post("/jobs", json=fields).json()["id"]
        wait_for(lambda: api.get(f"/jobs/{job_id}").json().get("text"), "it has output")
        victim.kill()
        # "queued", or "expired" already where this machine is slow.
        wait_for(lambda: api.get(f"/jobs/{job_id}").json()["state"] != "in_progress", "it is taken")
        wait_for(lambda: api.get(f"/jobs/{job_id}").json()["state"] == "expired", "it expires")
        worker = stack.worker(**slow)
        ended = api.get(f"/jobs/{job_id}").json()
        assert ended["error"]["code"] == "run_deadline_exceeded"
        assert [attempt["outcome"] for attempt in ended["attempts"]] == ["worker_lost"]
        assert worker.metric("flotilla_jobs_finished_total") == 0


def test_a_submitted_job_expires_in_the_queue(own_stack: Stack) -> None:
    gateway, worker = own_stack.gateway(), own_stack.worker()
    worker.terminate()
    worker.popen.wait(60)  # without one nothing is known about the wait, so none is refused
    codes = {"queue_deadline_s": "queue_deadline_exceeded", "deadline_s": "deadline_exceeded"}
    with httpx.Client(base_url=gateway.url, timeout=60) as api:
        for field, code in codes.items():
            made = api.post(
                "/jobs", json={"body": body(4), field: 0.2, "run_deadline_s": 50}
            ).json()
            assert made["deadline_at"] == pytest.approx(made["created_at"] + 0.2, abs=0.001)
            ended = api.get(f"/jobs/{made['id']}?wait=60").json()
            assert (ended["state"], ended["error"]["code"]) == ("expired", code)
            assert ended["run_deadline_s"] == 50
            assert ended["attempts"] == []
