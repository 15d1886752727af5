"""Anthropic's messages on real vLLM: through the queue with its SDK, and continued after any token.

The engine is in this process, started once per run, as for test_real_vllm.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from tests.e2e.continuation_classes import LogRecorder, run
from tests.harness.asgi_client import Reply, call
from tests.harness.fleet import Process
from tests.harness.servers import RedisServer
from tests.harness.vllm_fleet import vllm_fleet
from worker.core.sent_output import SentChunks
from worker.demo import MODEL_NAME
from worker.engines.interface import Engine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

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
LONG: list[Any] = [{"role": "user", "content": "a " * 9000}]
COMMON = {"model": MODEL_NAME, "temperature": 0, "max_tokens": 60}
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


def events(reply: Reply) -> list[bytes]:
    """The events of a stream, each with its empty line."""
    return [event + b"\n\n" for event in reply.body.split(b"\n\n") if event]


def normal(body: bytes) -> bytes:
    """Without ids, which are random or the job's."""
    return re.sub(rb'"id":"[^"]*"', b'"id":""', body)


def joined(body: bytes) -> bytes:
    """An answer without ids and comments. The texts of deltas follow each other: vLLM may merge
    those for which its reader is late."""
    if body.startswith(b"{"):
        return normal(body)
    found: list[bytes] = []
    for event in normal(body).split(b"\n\n"):
        if event.startswith(b"event: "):
            delta = json.loads(event[event.index(b"data: ") + 6 :]).get("delta") or {}
            part = delta.get("text") or delta.get("partial_json")
            found.append(part.encode() if part else event)
    return b"".join(found)


def tokens(log: list[Any]) -> list[int]:
    return [token for _, delta in log for token in delta.token_ids]


# --- the engine ---


async def answer(
    engine: Engine, body: dict[str, Any], past: Any = None
) -> tuple[Reply, LogRecorder]:
    journal = LogRecorder(past)
    reply = await asyncio.create_task(run(engine, PATH, body, journal))
    assert reply.status == 200, reply.body
    return reply, journal


@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_continued_after_any_token(name: str, vllm_engine: Engine) -> None:
    body = BODIES[name]
    whole, journal = await answer(vllm_engine, body)
    n = len(journal.log)
    assert n > 5
    for k in {1, 2, n // 3, n // 2, n - 1, n}:
        again, new = await answer(vllm_engine, body, journal.cut(k))
        assert not new.refused
        assert tokens(journal.log[:k] + new.log) == tokens(journal.log)
        assert joined(again.body) == joined(whole.body)
        if not body.get("stream"):
            continue
        n_sent = journal.chunks_before[k] if k < n else journal.chunks
        sent = SentChunks(events(whole)[:n_sent])
        unsent = [event for event in events(again) if sent.unsent(event) is not None]
        sent.check_all_made()
        assert joined(b"".join(unsent)) == joined(b"".join(events(whole)[n_sent:]))


# --- the fleet ---


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    vllm_engine: Engine, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Process]:
    """A gateway with a worker that serves the run's engine."""
    folder = tmp_path_factory.mktemp("messages")
    async with vllm_fleet(vllm_engine, redis_server, folder) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: Process) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
        yield client


def arguments(name: str) -> dict[str, Any]:
    """A body as arguments of the SDK, which has none for the temperature."""
    body = {key: value for key, value in BODIES[name].items() if key != "temperature"}
    return {**body, "extra_body": {"temperature": 0}}


async def test_an_answer_through_the_sdk(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**arguments("plain"))
    assert message.content[0].text.startswith("Flotilla is")
    assert message.stop_reason == "end_turn"
    async with client.messages.stream(**arguments("plain")) as stream:
        text = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert text == message.content[0].text
    assert (final.stop_reason, final.usage) == (message.stop_reason, message.usage)
    counted = await client.messages.count_tokens(model=MODEL_NAME, messages=QUESTION)
    assert counted.input_tokens == message.usage.input_tokens


async def test_a_tool_through_the_sdk(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**arguments("tool"))
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    async with client.messages.stream(**arguments("tool")) as stream:
        final = await stream.get_final_message()
    (streamed,) = [block for block in final.content if block.type == "tool_use"]
    assert (streamed.name, streamed.input) == (use.name, use.input)


@pytest.mark.parametrize("name", BODIES)
async def test_the_same_as_vllms_own_application(
    name: str, gateway: Process, vllm_engine: Engine
) -> None:
    own = await call(vllm_engine, "POST", PATH, BODIES[name])
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as api:
        ours = await api.post(PATH, json=BODIES[name])
    assert ours.status_code == own.status == 200
    assert ours.headers["content-type"] == own.headers["content-type"]
    assert joined(ours.content) == joined(own.body)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must be positive"),
        ({"max_tokens": 20_000}, anthropic.BadRequestError, "max_completion_tokens"),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, "temperature"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, anthropic.BadRequestError, "role"),
        (
            {"messages": [{"role": "user", "content": "a " * 9000}]},
            anthropic.BadRequestError,
            "context",
        ),
        ({"tool_choice": {"type": "tool"}}, anthropic.BadRequestError, "tool_choice"),
        ({"model": "nope"}, anthropic.NotFoundError, "nope"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_vllms_errors_through_the_sdk(
    fields: dict[str, Any], error: type[anthropic.APIStatusError], text: str,
    stream: bool, client: AsyncAnthropic,
) -> None:  # fmt: skip
    with pytest.raises(error, match=text) as caught:
        await client.messages.create(**arguments("plain") | fields, stream=stream)
    body: Any = caught.value.body
    assert body["type"] == "error"
    kind = "not_found_error" if caught.value.status_code == 404 else "invalid_request_error"
    assert body["error"]["type"] == kind
