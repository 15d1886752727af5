"""Streams that a gateway or a worker ends: what their clients get. Each test has a fleet."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.client import MODEL, Call, chat
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

RESPONSES = "/v1/responses"
FIELDS: dict[str, Any] = {"model": MODEL, "max_output_tokens": 4000}
SIMULATED: dict[str, Any] = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_gateway_that_stops_ends_a_response_that_goes_on(
    stack: Stack, workers: int, helper: bool
) -> None:
    gateway = stack.gateway(stream_status_wait_s=0, grace_s=1)
    worker = stack.worker(**SIMULATED)
    if not workers:
        worker.kill()
    body = FIELDS | {"input": "x", "ignore_eos": True, "stream": True}
    call = Call(gateway, body, path=RESPONSES)
    fields = FIELDS | {"input": "x", "extra_body": {"ignore_eos": True}}
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as sdk:
        make: Any = sdk.responses.stream if helper else sdk.responses.create
        with make(**fields) if helper else make(**fields, stream=True) as events:
            wait_for(lambda: call.events if workers else call.job_id, "the stream has begun")
            gateway.terminate()
            with pytest.raises(openai.APIError) as raised:
                list(events)
    assert raised.value.code == "gateway_stopped"
    call.join()
    assert call.lines[-2] == "event: error"
    *before, data = map(json.loads, call.events)
    assert (data["type"], data["code"], data["param"]) == ("error", "gateway_stopped", None)
    assert data["message"]
    assert data["sequence_number"] == len(before)
    assert bool(before) == bool(workers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_ends_its_workers(stack: Stack, stream: bool) -> None:
    """OpenAI's SDK does not send it again, at its defaults."""
    gateway = stack.gateway(max_attempts=1)
    faults = "kill_on_prompt=POISON,kill_after_tokens=3"
    # What the first worker has generated is in Redis before its next step.
    workers = [stack.worker(sim_step_ms=200, sim_faults=faults) for _ in range(3)]
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any") as sdk:
        if stream:
            with sdk.responses.stream(**FIELDS, input="POISON") as events:
                last: Any = list(events)[-1]
            assert (last.type, last.response.status) == ("response.failed", "failed")
            assert last.response.error.code == "too_many_attempts"
        else:
            with pytest.raises(openai.InternalServerError) as raised:
                sdk.responses.create(**FIELDS, input="POISON")
            assert raised.value.code == "too_many_attempts"
            assert raised.value.response.headers["x-should-retry"] == "false"
    assert sum(worker.popen.poll() is None for worker in workers) == 1


@pytest.mark.parametrize(("wait_s", "status"), [(60, 400), (0, 200)])
def test_until_when_a_refusal_has_its_own_status(stack: Stack, wait_s: float, status: int) -> None:
    stack.worker(**SIMULATED, sim_max_num_seqs=1)
    gateway = stack.gateway(stream_status_wait_s=wait_s)
    with httpx.Client(base_url=gateway.url, timeout=60) as api:
        running = api.post("/jobs", json={"body": chat(max_tokens=6000, ignore_eos=True)}).json()
        found = f"/jobs/{running['id']}"
        wait_for(lambda: api.get(found).json()["state"] == "in_progress", "the slot is taken")
        call = Call(gateway, chat(max_tokens=10**9, stream=True))
        wait_for(lambda: api.get("/jobs?state=queued").json()["data"], "the call waits")
        if wait_s == 0:
            wait_for(lambda: call.status, "its stream has begun")
        api.post(f"{found}/cancel")
    call.join()
    assert call.status == status
    assert '"error"' in call.lines[-1]
