"""Errors inside streams, in the form of the stream's API; and the comments of streams that wait.

A gateway whose streams begin at once, so every error after that is a part of the stream, and a
worker with one slot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import httpx
import pytest
from openai import OpenAI

from tests.harness.client import CHAT, MODEL, ResumingTransport, chat
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LONG = {"model": MODEL, "input": "x", "max_output_tokens": 4000, "ignore_eos": True}
BY_DEADLINE = {"x-flotilla-run-deadline": "0.5"}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    return module_stack.gateway(stream_status_wait_s=0, keepalive_s=0.2)


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client


@pytest.fixture
def sdk(gateway: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def busy(api: httpx.Client) -> Iterator[None]:
    """The only slot is taken."""
    job = api.post("/jobs", json={"body": chat(max_tokens=6000, ignore_eos=True)}).json()
    wait_for(lambda: api.get(f"/jobs/{job['id']}").json()["state"] == "in_progress", "it runs")
    yield
    api.post(f"/jobs/{job['id']}/cancel")


def cancel_first_queued(api: httpx.Client) -> None:
    (job,) = wait_for(lambda: api.get("/jobs?state=queued").json()["data"], "one waits")
    api.post(f"/jobs/{job['id']}/cancel")


class Event(NamedTuple):
    """An event of a stream."""

    name: str
    data: dict[str, Any]
    raw: bytes


def events_in(body: bytes) -> list[Event]:
    found = []
    for block in re.sub(rb"(?m)^:.*\n", b"", body).split(b"\n\n")[:-1]:
        name, data = block.split(b"\n")
        data = json.loads(data.removeprefix(b"data: "))
        found.append(Event(name.decode().removeprefix("event: "), data, block + b"\n\n"))
    return found


def check_failed(events: list[Event], code: str) -> None:
    """They are the events of a response that has failed with this code."""
    assert [event.data["sequence_number"] for event in events] == list(range(len(events)))
    assert [event.data["type"] for event in events] == [event.name for event in events]
    assert events[0].name == "response.created"
    last = events[-1].data
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == code
    assert last["response"]["error"]["message"]
    assert last["response"]["id"] == events[0].data["response"]["id"]
    assert last["response"]["model"] == MODEL
    assert last["response"]["created_at"] > 1_000_000_000


@pytest.mark.parametrize(
    ("headers", "fields", "code"),
    [
        (BY_DEADLINE, {}, "run_deadline_exceeded"),
        ({}, {"max_output_tokens": 10**9}, "invalid_prompt"),
    ],
)
def test_a_response_that_fails_while_it_is_streamed(
    api: httpx.Client, headers: dict[str, str], fields: dict[str, Any], code: str
) -> None:
    answer = api.post(RESPONSES, json=LONG | fields | {"stream": True}, headers=headers)
    assert answer.status_code == 200
    events = events_in(answer.content)
    check_failed(events, code)
    # Whoever reads it again reads the same.
    found = f"{RESPONSES}/{events[0].data['response']['id']}"
    error = api.get(found).json()["error"]
    assert error == events[-1].data["response"]["error"]
    again = events_in(api.get(f"{found}?stream=true").content)
    assert again[-1] == events[-1]
    assert len(again) == len(events)
    last = len(events) - 1
    behind = api.get(f"{found}?stream=true&starting_after={last - 1}").content
    assert events_in(behind) == events[last:]
    assert events_in(api.get(f"{found}?stream=true&starting_after={last}").content) == []


def test_a_failed_stream_is_resumed_by_its_events(api: httpx.Client) -> None:
    answer = api.post(RESPONSES, json=LONG | {"stream": True}, headers=BY_DEADLINE)
    events = events_in(answer.content)
    for n in (len(events) - 2, len(events) - 1, len(events)):
        crc = crc32(b"".join(event.raw for event in events[:n]))
        path = f"/jobs/{answer.headers['x-flotilla-job-id']}/stream?after={n}&crc32={crc:08x}"
        rest = api.get(path)
        assert rest.status_code == 200
        assert events_in(rest.content) == events[n:]


def test_a_keyed_call_gets_the_same_failure_again(api: httpx.Client) -> None:
    body, headers = LONG | {"stream": True}, BY_DEADLINE | {"idempotency-key": "failed-1"}
    first, second = [api.post(RESPONSES, json=body, headers=headers) for _ in range(2)]
    assert second.headers["idempotent-replayed"] == "true"
    assert events_in(second.content) == events_in(first.content)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("background", [False, True])
def test_a_response_that_is_cancelled_while_it_waits(
    api: httpx.Client, gateway: Process, background: bool
) -> None:
    body = LONG | {"stream": True, "background": background}
    with httpx.stream("POST", gateway.url + RESPONSES, json=body, timeout=60) as answer:
        cancel_first_queued(api)
        events = events_in(answer.read())
    check_failed(events, "cancelled")
    assert len(events) == 2


def events_of(stream: Any) -> list[Any]:
    with stream as events:
        return list(events)


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize("code", ["run_deadline_exceeded", "cancelled"])
def test_openais_sdk_ends_with_a_failed_event(
    api: httpx.Client, sdk: OpenAI, helper: bool, code: str, request: pytest.FixtureRequest
) -> None:
    body = {name: value for name, value in LONG.items() if name != "ignore_eos"}
    more: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
    if code == "cancelled":
        request.getfixturevalue("busy")
    else:
        more["extra_headers"] = BY_DEADLINE
    make: Any = sdk.responses.stream if helper else sdk.responses.create
    with make(**body, **more) if helper else make(**body, **more, stream=True) as events:
        if code == "cancelled":
            cancel_first_queued(api)
        last: Any = list(events)[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.code == code


@pytest.mark.usefixtures("busy")
def test_anthropics_errors_are_named_events(api: httpx.Client, gateway: Process) -> None:
    body = {**chat(max_tokens=4), "stream": True}
    with httpx.stream("POST", gateway.url + MESSAGES, json=body, timeout=60) as answer:
        cancel_first_queued(api)
        (event,) = events_in(answer.read())
    assert (event.name, event.data["type"]) == ("error", "error")
    assert event.data["error"]["code"] == "cancelled"


def test_anthropics_sdk_raises_the_error(gateway: Process, anthropic: Any) -> None:
    body = chat(max_tokens=4000, stream=True)
    with anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
        more: dict[str, Any] = {"extra_headers": BY_DEADLINE, "extra_body": {"ignore_eos": True}}
        with pytest.raises(anthropic.APIStatusError) as raised:
            list(client.messages.create(**body, **more))
    found: Any = raised.value.body
    assert found["error"]["code"] == "run_deadline_exceeded"


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_no_empty_line_follows_a_comment(api: httpx.Client, gateway: Process, path: str) -> None:
    """SDKs take a comment and an empty line for an event without data."""
    body = {**chat(max_tokens=4), "input": "x", "stream": True}
    with httpx.stream("POST", gateway.url + path, json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert all(next(lines).startswith(": ") for _ in range(3))
        cancel_first_queued(api)
        for line in lines:
            if not line.startswith(":"):
                assert line
                break


def test_a_stream_that_has_waited_is_resumed_by_its_events(
    api: httpx.Client, gateway: Process
) -> None:
    with httpx.Client(transport=ResumingTransport([gateway.url]), timeout=60) as client:
        whole = client.post(f"http://flotilla{CHAT}", json=chat(max_tokens=4, stream=True))
    events = [each + b"\n\n" for each in whole.content.split(b"\n\n")[:-1]]
    assert events[0].startswith(b": ")
    events[0] = re.sub(rb"(?m)^:.*\n", b"", events[0])
    path = f"/jobs/{whole.headers['x-flotilla-job-id']}/stream"
    for n in range(len(events)):
        crc = crc32(b"".join(events[:n]))
        rest = api.get(f"{path}?after={n}&crc32={crc:08x}").content
        assert rest == b"".join(events[n:])
