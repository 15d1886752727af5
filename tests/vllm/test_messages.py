"""Anthropic's messages on real vLLM, with Anthropic's SDK: the answers are those of vLLM itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.client import http
from tests.vllm.conftest import ServedModel
from tests.vllm.same_answer import difference

pytestmark = pytest.mark.vllm

PATH = "/v1/messages"
QUESTION: list[Any] = [{"role": "user", "content": "What is Flotilla?"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASK_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
COMMON = {"model": "demo", "temperature": 0, "max_tokens": 60}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {**COMMON, "messages": QUESTION},
    "streamed": {**COMMON, "messages": QUESTION, "stream": True},
    "stop sequence": {
        **COMMON,
        "messages": QUESTION,
        "stream": True,
        "stop_sequences": ["durable", " queue"],
    },
    "tool": {**COMMON, "messages": ASK_WEATHER, "tools": [WEATHER]},
    "tool, streamed": {**COMMON, "messages": ASK_WEATHER, "tools": [WEATHER], "stream": True},
}


@pytest.fixture
def client(demo: ServedModel, anthropic: Any) -> Iterator[Any]:
    url = demo.gateway_url
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=120) as client:
        yield client


def arguments(name: str) -> dict[str, Any]:
    """A body as arguments of the SDK, which has none for the temperature."""
    body = {key: value for key, value in BODIES[name].items() if key != "temperature"}
    return {**body, "extra_body": {"temperature": 0}}


def test_an_answer_through_the_sdk(client: Any, demo: ServedModel) -> None:
    message = client.messages.create(**arguments("plain"))
    assert message.content[0].text.startswith("Flotilla is")
    assert message.stop_reason == "end_turn"
    with client.messages.stream(**arguments("plain")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text
    assert (final.stop_reason, final.usage) == (message.stop_reason, message.usage)
    counted = client.messages.count_tokens(model=demo.name, messages=QUESTION)
    assert counted.input_tokens == message.usage.input_tokens


def test_a_tool_through_the_sdk(client: Any) -> None:
    message = client.messages.create(**arguments("tool"))
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    with client.messages.stream(**arguments("tool")) as stream:
        final = stream.get_final_message()
    (streamed,) = [block for block in final.content if block.type == "tool_use"]
    assert (streamed.name, streamed.input) == (use.name, use.input)


@pytest.mark.parametrize("name", BODIES)
def test_the_same_as_vllms_own_application(name: str, demo: ServedModel) -> None:
    ours, theirs = (
        http.post(url + PATH, json=BODIES[name], timeout=120)
        for url in (demo.gateway_url, demo.direct_url)
    )
    assert ours.status_code == 200
    assert difference(ours, theirs) == ""


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"max_tokens": 0}, "BadRequestError", "max_tokens must be positive"),
        ({"max_tokens": 20_000}, "BadRequestError", "max_completion_tokens"),
        ({"extra_body": {"temperature": -1}}, "BadRequestError", "temperature"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "BadRequestError", "role"),
        (
            {"messages": [{"role": "user", "content": "a " * 9000}]},
            "BadRequestError",
            "context",
        ),
        ({"tool_choice": {"type": "tool"}}, "BadRequestError", "tool_choice"),
        ({"model": "nope"}, "NotFoundError", "nope"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_vllms_errors_through_the_sdk(
    fields: dict[str, Any], error: str, text: str, stream: bool, client: Any, anthropic: Any
) -> None:
    with pytest.raises(getattr(anthropic, error), match=text) as caught:
        client.messages.create(**arguments("plain") | fields, stream=stream)
    body: Any = caught.value.body
    assert body["type"] == "error"
    kind = "not_found_error" if caught.value.status_code == 404 else "invalid_request_error"
    assert body["error"]["type"] == kind
