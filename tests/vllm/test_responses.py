"""OpenAI's Responses API on real vLLM: the same answers as vLLM's own application, and what vLLM
has not got: stored, continued and in the background, with the unmodified SDK.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.harness.client import http
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ServedModel
from tests.vllm.same_answer import difference

pytestmark = pytest.mark.vllm

PATH = "/v1/responses"
QUESTION = "What is Flotilla?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASK_WEATHER = "What is the weather in Paris?"
GREEDY = {"temperature": 0, "max_output_tokens": 40}
TOOLS: dict[str, Any] = {"input": ASK_WEATHER, "tools": [WEATHER], **GREEDY}
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["number"],
    "additionalProperties": False,
}
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    {"role": "assistant", "content": "A fleet."},
    {"type": "message", "role": "user", "content": "Of what?"},
]
CASES: dict[str, dict[str, Any]] = {
    "text": {"input": QUESTION, **GREEDY},
    "items": {"input": ITEMS, **GREEDY},
    "instructions": {"input": QUESTION, "instructions": "Be brief.", **GREEDY},
    "seed": {"input": QUESTION, "temperature": 1.2, "seed": 4, "max_output_tokens": 20},
    "one token": {"input": QUESTION, "temperature": 0, "max_output_tokens": 1},
    "logprobs": {
        "input": QUESTION,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        **GREEDY,
    },
    "tools": TOOLS,
    "tool choice": {**TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}},
    "no tool": {**TOOLS, "tool_choice": "none"},
    "schema": {
        "input": QUESTION,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        **GREEDY,
    },
    "metadata": {"input": QUESTION, "metadata": {"a": "b"}, "user": "me", **GREEDY},
    "not stored": {"input": QUESTION, "store": False, **GREEDY},
    "a number": {"input": 7},
    "a temperature": {"input": QUESTION, "temperature": -1},
    "no token": {"input": QUESTION, "max_output_tokens": 0},
    "too many tokens": {"input": "word " * 9000, **GREEDY},
    "a template": {"input": QUESTION, "prompt": {"id": "x"}},
    "an unknown tool": {**TOOLS, "tool_choice": {"type": "function", "name": "x"}},
    "required without tools": {"input": QUESTION, "tool_choice": "required"},
    "a bad schema": {
        "input": QUESTION,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}},
        **GREEDY,
    },
    "background and not stored": {"input": QUESTION, "background": True, "store": False},
}


@pytest.fixture
def client(demo: ServedModel) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{demo.gateway_url}/v1", api_key="any", max_retries=0, timeout=120
    ) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_vllms(demo: ServedModel, name: str) -> None:
    body = {"model": demo.name, **CASES[name]}
    ours, theirs = (
        http.post(url + PATH, json=body, timeout=120) for url in (demo.gateway_url, demo.direct_url)
    )
    assert difference(ours, theirs) == ""


@pytest.mark.parametrize("item", [{"type": "nothing"}, {"role": "stranger", "content": "x"}])
def test_a_wrong_item_is_refused(demo: ServedModel, item: dict[str, Any]) -> None:
    body = {"model": demo.name, "input": [item]}
    ours, theirs = (
        http.post(url + PATH, json=body, timeout=120) for url in (demo.gateway_url, demo.direct_url)
    )
    assert ours.status_code == theirs.status_code == 400
    assert ours.json()["error"]["param"] == theirs.json()["error"]["param"]


def events(answer: httpx.Response) -> list[Any]:
    """The events of a stream, deltas of one item joined, without ids and numbers."""
    found: list[Any] = []
    blocks = [block for block in answer.text.split("\n\n") if "data: " in block]
    for number, block in enumerate(blocks):
        event = json.loads(block.partition("data: ")[2])
        assert event.pop("sequence_number") == number
        last = found[-1] if found else {}
        if last.get("type") == event["type"] and "delta" in event:
            last["delta"] += event["delta"]
            last["logprobs"] = last.get("logprobs", []) + event.get("logprobs", [])
        else:
            found.append(event)
    return found


@pytest.mark.parametrize("name", ["text", "logprobs", "tools", "schema", "one token"])
def test_the_events_are_vllms(demo: ServedModel, name: str) -> None:
    body = {"model": demo.name, **CASES[name], "stream": True}
    ours, theirs = (
        events(http.post(url + PATH, json=body, timeout=120))
        for url in (demo.gateway_url, demo.direct_url)
    )
    if theirs[-1]["response"]["status"] == "incomplete":
        assert ours[-1]["type"] == "response.incomplete"
        theirs[-1]["type"] = "response.incomplete"
    as_answers = [httpx.Response(200, json={"events": each}) for each in (ours, theirs)]
    assert difference(*as_answers) == ""


def test_a_response_is_continued_and_read_again(client: OpenAI, demo: ServedModel) -> None:
    first = client.responses.create(model=demo.name, input=QUESTION, **GREEDY)
    second: Any = client.responses.create(
        model=demo.name, input="Go on.", previous_response_id=first.id, stream=True, **GREEDY
    )
    final = list(second)[-1].response
    by_hand: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Go on."},
    ]
    plain = client.responses.create(model=demo.name, input=by_hand, **GREEDY)
    assert final.output_text == plain.output_text
    assert client.responses.retrieve(final.id).output_text == final.output_text
    rest = list(client.responses.retrieve(final.id, stream=True, starting_after=3))
    assert rest[0].sequence_number == 4
    assert rest[-1].response == final


def test_a_tool_is_called_and_its_result_is_used(client: OpenAI, demo: ServedModel) -> None:
    first = client.responses.create(model=demo.name, **TOOLS)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(
        model=demo.name, input=[result], previous_response_id=first.id, tools=[WEATHER], **GREEDY
    )
    kinds = [item.type for item in client.responses.input_items.list(second.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]
    assert second.output


class Number(BaseModel):
    """What the model is to answer with."""

    number: int


def test_the_helpers_of_the_sdk(client: OpenAI, demo: ServedModel) -> None:
    schema: Any = {"text_format": Number}
    parsed = client.responses.parse(model=demo.name, input=QUESTION, **schema, **GREEDY)
    assert isinstance(parsed.output_parsed, Number)
    with client.responses.stream(model=demo.name, input=QUESTION, **GREEDY) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert (
        "".join(deltas)
        == client.responses.create(model=demo.name, input=QUESTION, **GREEDY).output_text
    )


def test_background_responses(client: OpenAI, demo: ServedModel) -> None:
    long: dict[str, Any] = {"max_output_tokens": 3000, "extra_body": {"ignore_eos": True}}
    running = client.responses.create(model=demo.name, input=QUESTION, background=True, **long)
    assert running.status in ("queued", "in_progress")
    short = client.responses.create(model=demo.name, input=QUESTION, background=True, **GREEDY)

    def ended() -> bool:
        return client.responses.retrieve(short.id).status in ("completed", "incomplete")

    wait_for(ended, "it has ended", 60)
    done = client.responses.retrieve(short.id)
    assert done.background
    assert done.output_text
    assert client.responses.cancel(running.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=demo.name, input="x", previous_response_id=running.id)
    client.responses.delete(running.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)


def test_a_conversation(client: OpenAI, demo: ServedModel) -> None:
    conversation = client.conversations.create()
    for text in ("What is Flotilla?", "Say hello."):
        client.responses.create(model=demo.name, input=text, conversation=conversation.id, **GREEDY)
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant"] * 2
