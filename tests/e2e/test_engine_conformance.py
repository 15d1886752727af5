"""What every engine implements: the journal, usage, stops, aborts, the step callback.

The `engine` fixture gives a started engine; all engines answer the same assertions, about chat
completions and completions. The words of an answer and vLLM's other fields are not compared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.asgi_client import Recorder, Reply, call
from worker.engines.interface import JOURNAL, NO_ROUTE, Engine

# An engine lives in one event loop, and vLLM is started once per run.
pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Say something about queues."}]
DEADLINE_S = 150.0

USAGE = ["prompt_tokens", "total_tokens", "completion_tokens"]


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


def text_in(choice: dict[str, Any]) -> str:
    """What a choice of a whole answer says."""
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


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


@pytest.mark.parametrize("ask", [chat, complete])
async def test_a_whole_answer(engine: Engine, ask: Any) -> None:
    journal = Recorder()
    reply = await ask(engine, journal)
    answer = reply.json()
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert answer["id"].endswith("-job-1")
    assert answer["object"] == ("chat.completion" if ask is chat else "text_completion")
    assert isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert choice["logprobs"] is None
    check_usage(answer["usage"], 12)
    assert journal.prompts == {0: answer["usage"]["prompt_tokens"]}
    assert len(journal.token_ids[0, 0]) == 12
    assert journal.texts == {(0, 0): text_in(choice)}


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


async def test_several_prompts(engine: Engine) -> None:
    journal = Recorder()
    answer = (await complete(engine, journal, prompt=["one", "another one"])).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    check_usage(answer["usage"], 24)
    assert sum(journal.prompts.values()) == answer["usage"]["prompt_tokens"]
    texts = [choice["text"] for choice in answer["choices"]]
    assert [journal.texts[call, 0] for call in sorted(journal.prompts)] == texts


@pytest.mark.parametrize(
    "fields", [{"stream": True}, {}, {"n": 2, "temperature": 1}, {"logprobs": 1}]
)
async def test_what_the_cache_held_of_a_prompt_is_journaled(
    engine: Engine, fields: dict[str, Any]
) -> None:
    prompt = f"Of {fields or 'nothing'}, " + "queues are long, " * 40
    first, second = Recorder(), Recorder()
    for journal in (first, second):
        assert (await complete(engine, journal, prompt=prompt, **fields)).status == 200
    assert 0 <= first.cached_tokens <= first.prompts[0]
    assert first.cached_tokens <= second.cached_tokens <= second.prompts[0]
    # The simulated engine of these tests has no cache.
    assert (second.cached_tokens > 0) == engine.kind.startswith("vllm")


# --- streams ---


@pytest.mark.parametrize("ask", [chat, complete])
async def test_a_stream(engine: Engine, ask: Any) -> None:
    journal = Recorder()
    reply = await ask(engine, journal, stream=True)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(chunk.endswith(b"\n\n") for chunk in reply.chunks)
    *others, last = events = reply.events()
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    if ask is chat:
        (first,) = others.pop(0)["choices"]
        assert first["delta"] == {"role": "assistant", "content": ""}
    for event in others:
        (choice,) = event["choices"]
        assert choice["finish_reason"] is None
    assert last["choices"][0]["finish_reason"] == "length"
    assert len(journal.token_ids[0, 0]) == 12
    assert journal.texts == {(0, 0): text_of(events)}


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{"messages": "hi"}, {"messages": []}, {"max_tokens": 0}, {"max_tokens": 10_000_000}, {"n": 0}],
)
async def test_a_request_that_can_not_be_used(
    engine: Engine, fields: dict[str, Any], stream: bool
) -> None:
    journal = Recorder()
    reply = await chat(engine, journal, stream=stream, **fields)
    assert reply.status == 400
    assert reply.json()["error"]["message"]
    assert (journal.prompts, engine.load().unfinished) == ({}, 0)


@pytest.mark.parametrize("path", ["/nothing/here", CHAT])
async def test_what_is_no_route_is_refused_in_the_words_that_workers_know(
    engine: Engine, path: str
) -> None:
    reply = await call(engine, "GET", path)
    assert reply.status in (404, 405)
    assert reply.json()["error"]["message"].startswith(f"{NO_ROUTE} GET {path}")


# --- the rest of the engine ---


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
async def test_stream_chunks_bypass_the_application_and_are_the_same(
    engine: Engine, path: str, usage: bool
) -> None:
    ask = chat if path == CHAT else complete
    # Many tokens: what comes while the application makes the first chunk waits for it.
    fields = {"stream": True, "stream_options": {"include_usage": usage}, "max_tokens": 100}
    journal = Recorder()
    passed, sent = await ask(engine, journal, **fields), await ask(engine, **fields)
    assert journal.passed_on > journal.deltas / 2
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
