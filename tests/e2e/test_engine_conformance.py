"""What every engine implements: vLLM's wire formats, the journal, aborts, the step callback.

The `engine` fixture gives a started engine; all engines answer the same assertions. What is
compared are names, types and arithmetic, never the words of an answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.asgi_client import Recorder, Reply, call
from worker.engines.interface import JOURNAL, Engine

# An engine lives in one event loop, and vLLM is started once per run.
pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Say something about queues."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
DEADLINE_S = 30.0

USAGE = ["prompt_tokens", "total_tokens", "completion_tokens"]
DETAILS = ["prompt_tokens_details", "completion_tokens_details"]
CHUNK = ["id", "object", "created", "model", "choices"]
CHAT_ANSWER = [
    *CHUNK,
    "service_tier",
    "system_fingerprint",
    "usage",
    "prompt_logprobs",
    "prompt_token_ids",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
]
CHAT_CHOICE = [
    "index",
    "message",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "routed_experts",
]
MESSAGE = ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"]
COMPLETION_ANSWER = [
    *CHUNK,
    "service_tier",
    "system_fingerprint",
    "usage",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
]
COMPLETION_CHOICE = [
    "index",
    "text",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "prompt_logprobs",
    "prompt_token_ids",
    "routed_experts",
]
COMPLETION_CHUNK_CHOICE = [
    "index",
    "text",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "prompt_token_ids",
    "token_ids",
]


async def post(engine: Engine, path: str, body: Any, journal: Recorder | None = None) -> Reply:
    """Call the engine as the runner does: in a context that names the journal."""
    JOURNAL.set(journal)
    return await call(engine, "POST", path, body, {"x-request-id": "job-1"})


async def chat(engine: Engine, journal: Recorder | None = None, **fields: Any) -> Reply:
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return await post(engine, CHAT, {**body, **fields}, journal)


async def complete(engine: Engine, journal: Recorder | None = None, **fields: Any) -> Reply:
    body = {"prompt": "Queues are", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return await post(engine, COMPLETIONS, {**body, **fields}, journal)


def check_usage(usage: dict[str, Any], n_generated: int) -> None:
    assert list(usage)[:3] == USAGE
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] == n_generated
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def text_of(events: list[Any], index: int = 0) -> str:
    """What a stream says in one choice."""
    choices = [
        choice for event in events for choice in event["choices"] if choice["index"] == index
    ]
    return "".join(c["delta"]["content"] if "delta" in c else c["text"] for c in choices)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - an engine has no signal for what is awaited here
            await asyncio.sleep(0.005)


# --- whole answers ---


async def test_chat(engine: Engine) -> None:
    journal = Recorder()
    reply = await chat(engine, journal)
    answer = reply.json()
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert list(answer) == CHAT_ANSWER
    assert answer["id"] == "chatcmpl-job-1"
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert isinstance(answer["system_fingerprint"], str)
    (choice,) = answer["choices"]
    assert list(choice) == CHAT_CHOICE
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    assert choice["logprobs"] is None
    assert list(choice["message"]) == MESSAGE
    assert choice["message"]["role"] == "assistant"
    assert list(answer["usage"]) == USAGE + DETAILS
    check_usage(answer["usage"], 12)
    assert journal.prompts == {0: answer["usage"]["prompt_tokens"]}
    assert len(journal.token_ids[0, 0]) == 12
    assert journal.texts == {(0, 0): choice["message"]["content"]}


async def test_completion(engine: Engine) -> None:
    journal = Recorder()
    reply = await complete(engine, journal)
    answer = reply.json()
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert list(answer) == COMPLETION_ANSWER
    assert answer["id"] == "cmpl-job-1"
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert list(choice) == COMPLETION_CHOICE
    assert choice["finish_reason"] == "length"
    assert list(answer["usage"]) == USAGE + DETAILS
    check_usage(answer["usage"], 12)
    assert journal.prompts == {0: answer["usage"]["prompt_tokens"]}
    assert len(journal.token_ids[0, 0]) == 12
    assert journal.texts == {(0, 0): choice["text"]}


async def test_an_id_is_generated_without_the_header(engine: Engine) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    ids = [(await call(engine, "POST", CHAT, body)).json()["id"] for _ in range(2)]
    assert all(re.fullmatch(r"chatcmpl-[0-9a-f]{16,}", one) for one in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_limits(engine: Engine, limit: str) -> None:
    answer = (await chat(engine, **{"max_tokens": None, limit: 3})).json()
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_completion_has_16_tokens_by_default(engine: Engine) -> None:
    answer = (await complete(engine, max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_nulls_are_defaults(engine: Engine) -> None:
    nulls = dict.fromkeys(["stop", "n", "stream", "seed", "top_p", "tools", "stream_options"])
    reply = await chat(engine, **nulls)
    assert reply.status == 200
    assert len(reply.json()["choices"]) == 1


async def test_tools_may_be_offered(engine: Engine) -> None:
    reply = await chat(engine, tools=[TOOL], tool_choice="none")
    assert reply.status == 200
    assert list(reply.json()["choices"][0]["message"]) == MESSAGE


async def test_content_parts(engine: Engine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    reply = await chat(engine, messages=[{"role": "user", "content": parts}])
    assert reply.status == 200


async def test_several_choices(engine: Engine) -> None:
    journal = Recorder()
    answer = (await chat(engine, journal, n=2, temperature=1, seed=7)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    check_usage(answer["usage"], 24)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [journal.texts[0, index] for index in (0, 1)] == texts
    assert [len(journal.token_ids[0, index]) for index in (0, 1)] == [12, 12]
    again = (await chat(engine, n=2, temperature=1, seed=7)).json()
    assert [choice["message"]["content"] for choice in again["choices"]] == texts


@pytest.mark.parametrize("prompts", [["one", "another one"], [[5, 6, 7], [8, 9]]])
async def test_several_prompts(engine: Engine, prompts: list[Any]) -> None:
    journal = Recorder()
    answer = (await complete(engine, journal, prompt=prompts)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    check_usage(answer["usage"], 24)
    assert sum(journal.prompts.values()) == answer["usage"]["prompt_tokens"]
    texts = [choice["text"] for choice in answer["choices"]]
    assert [journal.texts[call, 0] for call in sorted(journal.prompts)] == texts


async def test_token_ids_as_prompt(engine: Engine) -> None:
    answer = (await complete(engine, prompt=[5, 6, 7])).json()
    assert answer["usage"]["prompt_tokens"] == 3


async def test_token_ids_come_back(engine: Engine) -> None:
    journal = Recorder()
    answer = (await complete(engine, journal, return_token_ids=True)).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == journal.token_ids[0, 0]
    assert len(choice["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


async def test_chat_logprobs(engine: Engine) -> None:
    answer = (await chat(engine, logprobs=True, top_logprobs=2)).json()
    (choice,) = answer["choices"]
    assert list(choice["logprobs"]) == ["content"]
    assert len(choice["logprobs"]["content"]) == 12
    for entry in choice["logprobs"]["content"]:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert [list(top) for top in entry["top_logprobs"]] == [["token", "logprob", "bytes"]] * 2


async def test_chat_logprobs_without_top(engine: Engine) -> None:
    answer = (await chat(engine, logprobs=True)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 12


async def test_completion_logprobs(engine: Engine) -> None:
    answer = (await complete(engine, logprobs=2)).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert list(logprobs) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert {len(values) for values in logprobs.values()} == {12}
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    assert all(1 <= len(top) <= 2 for top in logprobs["top_logprobs"])


# --- streams ---


async def test_chat_stream(engine: Engine) -> None:
    journal = Recorder()
    reply = await chat(engine, journal, stream=True)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(chunk.endswith(b"\n\n") for chunk in reply.chunks)
    events = reply.events()
    assert {event["id"] for event in events} == {"chatcmpl-job-1"}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["created"], event["model"]) for event in events}) == 1
    first, *middle, last = events
    assert list(first) == [*CHUNK, "prompt_token_ids", "prompt_text"]
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    for event in middle:
        assert list(event) == CHUNK
        (choice,) = event["choices"]
        assert list(choice) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
        assert list(choice["delta"]) == ["content"]
        assert choice["finish_reason"] is None
    assert list(last) == [*CHUNK, "system_fingerprint"]
    (choice,) = last["choices"]
    assert list(choice) == [
        "index",
        "delta",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "token_ids",
    ]
    assert choice["finish_reason"] == "length"
    assert len(journal.token_ids[0, 0]) == 12
    assert journal.texts == {(0, 0): text_of(events)}


async def test_completion_stream(engine: Engine) -> None:
    journal = Recorder()
    reply = await complete(engine, journal, stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *middle, last = events = reply.events()
    assert {event["id"] for event in events} == {"cmpl-job-1"}
    for event in middle:
        assert list(event) == CHUNK
        (choice,) = event["choices"]
        assert list(choice) == COMPLETION_CHUNK_CHOICE
        assert choice["finish_reason"] is None
    assert list(last) == [*CHUNK, "system_fingerprint"]
    assert list(last["choices"][0]) == COMPLETION_CHUNK_CHOICE
    assert last["choices"][0]["finish_reason"] == "length"
    assert journal.texts == {(0, 0): text_of(events)}


@pytest.mark.parametrize("ask", [chat, complete])
async def test_a_stream_has_the_text_of_the_full_answer(engine: Engine, ask: Any) -> None:
    (whole,) = (await ask(engine, max_tokens=24)).json()["choices"]
    events = (await ask(engine, max_tokens=24, stream=True)).events()
    assert text_of(events) == (whole["message"]["content"] if "message" in whole else whole["text"])


@pytest.mark.parametrize("ask", [chat, complete])
async def test_usage_at_the_end(engine: Engine, ask: Any) -> None:
    options = {"include_usage": True}
    events = (await ask(engine, stream=True, stream_options=options)).events()
    assert all("usage" not in event for event in events[:-1])
    assert all("system_fingerprint" not in event for event in events[:-1])
    assert list(events[-1]) == [*CHUNK, "usage", "system_fingerprint"]
    assert events[-1]["choices"] == []
    assert list(events[-1]["usage"]) == USAGE
    check_usage(events[-1]["usage"], 12)


@pytest.mark.parametrize("ask", [chat, complete])
async def test_usage_all_the_time(engine: Engine, ask: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await ask(engine, stream=True, stream_options=options)).events()
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    for event in events:
        check_usage(event["usage"], event["usage"]["completion_tokens"])
    details = ["completion_tokens_details"] if ask is chat else []
    assert list(events[1]["usage"]) == USAGE + details


async def test_several_choices_in_a_stream(engine: Engine) -> None:
    journal = Recorder()
    fields = {"n": 2, "temperature": 1, "seed": 7, "stream_options": {"include_usage": True}}
    events = (await chat(engine, journal, stream=True, **fields)).events()
    assert [event["choices"][0]["index"] for event in events[:2]] == [0, 1]
    assert all("role" in event["choices"][0]["delta"] for event in events[:2])
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None]
    assert sorted(ends) == [0, 1]
    check_usage(events[-1]["usage"], 24)
    assert journal.texts == {(0, index): text_of(events, index) for index in (0, 1)}


async def test_logprobs_in_a_stream(engine: Engine) -> None:
    events = (await chat(engine, stream=True, logprobs=True, top_logprobs=1)).events()
    entries = [
        entry
        for event in events[1:]
        for choice in event["choices"]
        for entry in choice["logprobs"]["content"]
    ]
    assert len(entries) == 12
    events = (await complete(engine, stream=True, logprobs=1)).events()
    tokens = [token for event in events for token in event["choices"][0]["logprobs"]["tokens"]]
    assert len(tokens) == 12


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("included", [False, True])
async def test_stop_string(engine: Engine, stream: bool, included: bool) -> None:
    whole = (await chat(engine, max_tokens=24)).json()["choices"][0]["message"]["content"]
    found = re.search(r"[A-Za-z]{3}", whole[4:])
    assert found, whole
    stop = found.group()
    end = whole.index(stop) + (len(stop) if included else 0)
    journal = Recorder()
    fields = {"stop": [stop], "include_stop_str_in_output": included, "max_tokens": 24}
    reply = await chat(engine, journal, stream=stream, **fields)
    if stream:
        events = reply.events()
        text, choice = text_of(events), events[-1]["choices"][0]
    else:
        (choice,) = reply.json()["choices"]
        text = choice["message"]["content"]
        check_usage(reply.json()["usage"], len(journal.token_ids[0, 0]))
    assert text == whole[:end]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert journal.texts == {(0, 0): text}


# --- errors ---


def check_error(reply: Reply, status: int, kind: str, param: str | None) -> str:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["type"] == kind
    assert body["error"]["param"] == param
    assert body["error"]["code"] == status
    message = body["error"]["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [chat, complete])
async def test_unknown_model(engine: Engine, ask: Any, stream: bool) -> None:
    reply = await ask(engine, model="no-such-model", stream=stream)
    assert "`no-such-model` does not exist" in check_error(reply, 404, "NotFoundError", "model")


@pytest.mark.parametrize(
    ("raw", "param"),
    [(b"{nope", "body.1"), (b"", "body"), (b"[]", "body"), (b'{"messages": [],}', "body.16")],
)
async def test_broken_body(engine: Engine, raw: bytes, param: str) -> None:
    check_error(await post(engine, CHAT, raw), 400, "Bad Request", param)


async def test_body_that_is_not_text(engine: Engine) -> None:
    reply = await post(engine, CHAT, b'"\xff"')
    message = check_error(reply, 400, "BadRequestError", None)
    assert message == "There was an error parsing the body"


async def test_body_that_is_not_called_json(engine: Engine) -> None:
    raw = json.dumps({"messages": MESSAGES}).encode()
    reply = await call(engine, "POST", CHAT, raw, {"content-type": "text/plain"})
    assert reply.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hi"}, "body.messages"),
        ({"max_tokens": "many"}, "body.max_tokens"),
        ({"max_tokens": 1.5}, "body.max_tokens"),
        ({"n": "x"}, "body.n"),
        ({"temperature": "hot"}, "body.temperature"),
        ({"stream": "x"}, "body.stream"),
        ({"seed": "x"}, "body.seed"),
        ({"stop": 5}, "body.stop"),
        ({"model": 5}, "body.model"),
        ({"tools": 5}, "body.tools"),
        ({"ignore_eos": "x"}, "body.ignore_eos"),
    ],
)
async def test_wrong_type(engine: Engine, fields: dict[str, Any], param: str) -> None:
    check_error(await chat(engine, **fields), 400, "Bad Request", param)


async def test_missing_messages(engine: Engine) -> None:
    check_error(await post(engine, CHAT, {}), 400, "Bad Request", "body.messages")


async def test_broken_message(engine: Engine) -> None:
    for message in ("x", {"content": "x"}, {"role": "user", "content": 5}):
        reply = await chat(engine, messages=[message])
        assert reply.status == 400
        assert reply.json()["error"]["param"].startswith("body.messages.0")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10_000_000}, "max_tokens"),
        ({"max_tokens": 10_000_000, "stream": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"n": 0}, None),
        ({"n": 2}, None),  # greedy
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop": [""]}, None),
        ({"messages": []}, None),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 100}, "logprobs"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
    ],
)
async def test_wrong_value(engine: Engine, fields: dict[str, Any], param: str | None) -> None:
    check_error(await chat(engine, **fields), 400, "BadRequestError", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000_000}, "max_tokens"),
        ({"n": 0}, None),
        ({"logprobs": 100}, "logprobs"),
    ],
)
async def test_wrong_completion_value(
    engine: Engine, fields: dict[str, Any], param: str | None
) -> None:
    check_error(await complete(engine, **fields), 400, "BadRequestError", param)


@pytest.mark.parametrize("prompt", [5, {"a": 1}])
async def test_wrong_prompt_type(engine: Engine, prompt: Any) -> None:
    check_error(await complete(engine, prompt=prompt), 400, "Bad Request", "body.prompt")


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_that_is_too_long(engine: Engine, stream: bool) -> None:
    limit = engine.capacity.max_model_len
    reply = await complete(engine, prompt=[5] * (limit + 5), max_tokens=1, stream=stream)
    check_error(reply, 400, "BadRequestError", "input_tokens")
    reply = await complete(engine, prompt=[5] * limit, max_tokens=1, stream=stream)
    check_error(reply, 400, "BadRequestError", "max_tokens")


async def test_an_answer_ends_with_the_context(engine: Engine) -> None:
    limit = engine.capacity.max_model_len
    answer = (await complete(engine, prompt=[5] * (limit - 3), max_tokens=100)).json()
    assert answer["usage"]["total_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_unknown_fields_are_ignored(engine: Engine) -> None:
    assert (await chat(engine, no_such_field=1)).status == 200


async def test_unknown_route(engine: Engine) -> None:
    reply = await call(engine, "GET", "/nothing/here")
    message = check_error(reply, 404, "NotFoundError", None)
    assert message == "This model does not serve GET /nothing/here: Not Found"


async def test_wrong_method(engine: Engine) -> None:
    reply = await call(engine, "GET", CHAT)
    message = check_error(reply, 405, "MethodNotAllowedError", None)
    assert message == f"This model does not serve GET {CHAT}: Method Not Allowed"
    assert reply.headers["allow"] == "POST"


# --- the rest of the engine ---


async def test_models(engine: Engine) -> None:
    reply = await call(engine, "GET", "/v1/models")
    body = reply.json()
    assert list(body) == ["object", "data"]
    assert body["object"] == "list"
    card = body["data"][0]
    assert list(card) == [
        "id",
        "object",
        "created",
        "owned_by",
        "root",
        "parent",
        "max_model_len",
        "permission",
    ]
    assert card["object"] == "model"
    assert card["max_model_len"] == engine.capacity.max_model_len
    assert list(card["permission"][0]) == [
        "id",
        "object",
        "created",
        "allow_create_engine",
        "allow_sampling",
        "allow_logprobs",
        "allow_search_indices",
        "allow_view",
        "allow_fine_tuning",
        "organization",
        "group",
        "is_blocking",
    ]
    named = await chat(engine, model=card["id"])
    assert named.json()["model"] == card["id"]


async def test_health(engine: Engine) -> None:
    reply = await call(engine, "GET", "/health")
    assert (reply.status, reply.body) == (200, b"")
    assert not engine.dead


async def test_capacity(engine: Engine) -> None:
    capacity = engine.capacity
    assert capacity.max_num_seqs >= 1
    assert capacity.kv_cache_tokens >= capacity.max_model_len >= 1
    assert engine.kind


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_disconnect_aborts(engine: Engine, stream: bool, n: int) -> None:
    journal = Recorder()
    gone = asyncio.Event()
    body = {
        "messages": MESSAGES,
        "max_completion_tokens": engine.capacity.max_model_len // 2,
        "ignore_eos": True,
        "stream": stream,
        "n": n,
    }
    JOURNAL.set(journal)
    running = asyncio.create_task(call(engine, "POST", CHAT, body, disconnect=gone))
    await until(lambda: journal.deltas > 0)
    assert engine.load().unfinished == n
    gone.set()
    reply = await asyncio.wait_for(running, DEADLINE_S)
    assert b"[DONE]" not in reply.body
    await until(lambda: engine.load().unfinished == 0)


async def test_cancelling_the_call_aborts(engine: Engine) -> None:
    journal = Recorder()
    JOURNAL.set(journal)
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True}
    running = asyncio.create_task(call(engine, "POST", CHAT, body))
    await until(lambda: journal.deltas > 0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: engine.load().unfinished == 0)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("usage", [False, True])
async def test_plain_chunks_bypass_the_application_and_are_the_same(
    engine: Engine, path: str, usage: bool
) -> None:
    ask = chat if path == CHAT else complete
    fields = {"stream": True, "stream_options": {"include_usage": usage}}
    journal = Recorder()
    passed, sent = await ask(engine, journal, **fields), await ask(engine, **fields)
    assert journal.passed_on > 6  # of 12; what comes while the application speaks waits for it
    assert text_of(passed.events()) == text_of(sent.events()) == journal.texts[0, 0]
    for mine, its in zip(passed.events()[-2:], sent.events()[-2:], strict=True):
        assert mine.get("usage") == its.get("usage")
        assert list(mine) == list(its)


@pytest.mark.parametrize("fields", [{"n": 2, "temperature": 1}, {"logprobs": True}])
async def test_other_chunks_come_from_the_application(
    engine: Engine, fields: dict[str, Any]
) -> None:
    journal = Recorder()
    reply = await chat(engine, journal, stream=True, **fields)
    assert reply.events()
    assert journal.passed_on == 0


async def test_a_step_ends_after_its_deltas_are_sent(engine: Engine) -> None:
    """A callback that `on_step` schedules runs when the step's chunks have been sent."""
    loop = asyncio.get_running_loop()
    sent = 0
    flushed = []
    old = engine.on_step

    def count(chunk: bytes) -> None:
        nonlocal sent
        sent += b'"content":""' not in chunk and b"[DONE]" not in chunk

    def flush_soon() -> None:
        loop.call_soon(lambda: flushed.append(sent))

    engine.on_step = flush_soon
    try:
        JOURNAL.set(None)
        body = {"messages": MESSAGES, "max_tokens": 12, "ignore_eos": True, "stream": True}
        await call(engine, "POST", CHAT, {**body, "temperature": 0}, on_chunk=count)
        await until(lambda: bool(flushed) and flushed[-1] == sent)
    finally:
        engine.on_step = old
    assert len(flushed) >= sent // 2
    assert flushed == sorted(flushed)


async def test_many_at_once(engine: Engine) -> None:
    journals = [Recorder() for _ in range(8)]
    asked = [
        asyncio.create_task(complete(engine, journal, prompt=f"Number {i} is", stream=bool(i % 2)))
        for i, journal in enumerate(journals)
    ]
    replies = await asyncio.gather(*asked)
    for i, (reply, journal) in enumerate(zip(replies, journals, strict=True)):
        text = text_of(reply.events()) if i % 2 else reply.json()["choices"][0]["text"]
        assert journal.texts == {(0, 0): text}
    await until(lambda: engine.load().unfinished == 0)
