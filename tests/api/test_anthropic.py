"""The unmodified Anthropic SDK against a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

KEY = "sk-of-a-client"
MESSAGES: list[Any] = [{"role": "user", "content": "What is a queue?"}]
EVENTS = (
    ["message_start", "content_block_start"]
    + ["content_block_delta"] * 6
    + ["content_block_stop", "message_delta", "message_stop"]
)


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A gateway with a key, and one worker."""
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack.gateway(api_keys=f"clients:{KEY}", max_body_bytes=1 << 20)


@pytest.fixture
def client(gateway: Process, anthropic: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


def create(client: Any, **fields: Any) -> Any:
    return client.messages.create(
        **{"model": MODEL, "messages": MESSAGES, "max_tokens": 6} | fields
    )


def test_a_message(client: Any) -> None:
    message = create(client, system="Be brief.")
    assert message.content[0].text.startswith("[simulated]")
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 6
    assert message.usage.input_tokens > 3
    assert message.id == f"chatcmpl-{message._request_id}"


def test_the_events_of_a_stream(client: Any) -> None:
    plain = create(client)
    events = list(create(client, stream=True))
    assert [event.type for event in events] == EVENTS
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == plain.content[0].text
    assert events[-2].usage.output_tokens == plain.usage.output_tokens == 6


def test_the_streaming_helper(client: Any) -> None:
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=6) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text == create(client).content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 6


def test_counting_tokens(client: Any) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def test_a_stop_sequence(client: Any) -> None:
    text = create(client).content[0].text
    message = create(client, stop_sequences=[text[20:26]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[20:26])


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_what_the_sdk_expects(client: Any, anthropic: Any, stream: bool) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        create(client, model="nope", stream=stream)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):  # the engine's
        create(client, max_tokens=0, stream=stream)
    with pytest.raises(anthropic.BadRequestError, match="`model`"):
        create(client, model=7, stream=stream)
    large = [{"role": "user", "content": "a" * (2 << 20)}]
    with pytest.raises(anthropic.RequestTooLargeError):
        create(client, messages=large, stream=stream)


def test_a_wrong_key(gateway: Process, anthropic: Any) -> None:
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        create(client)
    assert refused.value.body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status", "kind"),
    [
        ("POST", "/v1/messages", {}, b"{}", 401, "authentication_error"),
        ("POST", "/v1/messages/nothing", {"x-api-key": KEY}, b"{}", 404, "not_found_error"),
        ("GET", "/v1/messages/nothing", {}, b"", 401, "authentication_error"),
        ("GET", "/v1/messages", {"x-api-key": KEY}, b"", 405, "invalid_request_error"),
        ("POST", "/v1/messages", {"x-api-key": KEY}, b"{}", 415, "invalid_request_error"),
    ],
)
def test_every_error_below_the_path_has_anthropics_shape(
    gateway: Process,
    method: str,
    path: str,
    headers: dict[str, str],
    content: bytes,
    status: int,
    kind: str,
) -> None:
    answer = http.request(method, f"{gateway.url}{path}", headers=headers, content=content)
    assert answer.status_code == status
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert answer.headers["content-type"] == "application/json"


def test_x_api_key_is_enough_everywhere(gateway: Process) -> None:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
    for path in ("/v1/messages", CHAT):
        answer = http.post(f"{gateway.url}{path}", json=body, headers=headers)
        assert answer.status_code == 200
    assert http.get(f"{gateway.url}/v1/models", headers=headers).status_code == 200


def test_a_job_of_it_and_its_events(gateway: Process) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 5, "stream": True}
    with httpx.Client(base_url=gateway.url, headers={"x-api-key": KEY}) as api:
        job = api.post("/jobs", json={"endpoint": "/v1/messages", "body": body}).json()
        wait_for(
            lambda: api.get(f"/jobs/{job['id']}").json()["state"] == "completed", "it completes"
        )
        whole = api.get(f"/jobs/{job['id']}/result").text
        assert whole.startswith("event: message_start\ndata: {")
        rest = api.get(f"/jobs/{job['id']}/stream", params={"after": 3}).text
        assert whole.endswith(rest)
        assert rest.startswith("event: content_block_delta\n")
        events = api.get(f"/jobs/{job['id']}/events").text
    data = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(each)["type"] for each in data if '"type"' in each]
    assert chunks[0] == "message_start"
    assert chunks[-1] == "message_stop"
