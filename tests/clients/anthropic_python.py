"""Anthropic's SDK for Python, unmodified."""

from __future__ import annotations

import time
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from checks import BASE, KEY, MODEL, QUESTION, check, main, raises

client = Anthropic(base_url=BASE, api_key=KEY, timeout=120, max_retries=0)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@check("messages")
def messages() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES)
    assert answer.type == "message"
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.input_tokens > 0
    assert answer.stop_reason in {"end_turn", "max_tokens"}


@check("messages, with a system prompt")
def system() -> None:
    answer = client.messages.create(
        model=MODEL, max_tokens=20, messages=MESSAGES, system="Answer shortly."
    )
    assert answer.content


@check("messages, streamed")
def stream() -> None:
    with client.messages.stream(model=MODEL, max_tokens=20, messages=MESSAGES) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0


@check("messages, streamed, raw events")
def raw_stream() -> None:
    events = list(
        client.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES, stream=True)
    )
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert "content_block_delta" in kinds


@check("messages, asynchronous")
async def asynchronous() -> None:
    async with (
        AsyncAnthropic(base_url=BASE, api_key=KEY, timeout=120, max_retries=0) as other,
        other.messages.stream(model=MODEL, max_tokens=20, messages=MESSAGES) as events,
    ):
        assert "".join([text async for text in events.text_stream])


@check("count_tokens")
def count_tokens() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


@check("errors")
def errors() -> None:
    no_model = raises(
        anthropic.NotFoundError,
        lambda: client.messages.create(model="no-such", max_tokens=2, messages=MESSAGES),
    )
    assert no_model.body["type"] == "error"
    assert no_model.body["error"]["type"] == "not_found_error"
    invalid = raises(
        anthropic.BadRequestError,
        lambda: client.messages.create(model=MODEL, max_tokens=2, messages=[]),
    )
    assert invalid.body["error"]["type"] == "invalid_request_error"


@check("messages.batches")
def batches() -> None:
    params: Any = {"model": MODEL, "max_tokens": 20, "messages": MESSAGES, "temperature": 0}
    requests: Any = [{"custom_id": f"q{n}", "params": params} for n in range(5)]
    wrong = {"custom_id": "wrong", "params": params | {"max_tokens": -1}}
    batch = client.messages.batches.create(requests=[*requests, wrong])
    assert batch.request_counts.processing == 6
    until = time.monotonic() + 100
    while batch.processing_status != "ended" and time.monotonic() < until:
        time.sleep(0.5)
        batch = client.messages.batches.retrieve(batch.id)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (5, 1)
    found = {each.custom_id: each.result for each in client.messages.batches.results(batch.id)}
    single = client.post("/v1/messages", body=params, cast_to=anthropic.types.Message)
    for name, result in found.items():
        if name == "wrong":
            assert result.type == "errored"
            assert result.error.error.type == "invalid_request_error"
        else:
            assert result.type == "succeeded"
            assert result.message.content == single.content
            assert result.message.usage == single.usage
    assert len(found) == 6
    raises(anthropic.ConflictError, lambda: client.messages.batches.cancel(batch.id))
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    raises(anthropic.NotFoundError, lambda: client.messages.batches.retrieve(batch.id))


@check("messages.batches: cancel, list")
def cancelled_batches() -> None:
    params: Any = {"model": MODEL, "max_tokens": 20, "messages": MESSAGES}
    requests: Any = [{"custom_id": "a", "params": params}]
    made = [client.messages.batches.create(requests=requests).id for _ in range(3)][::-1]
    client.messages.batches.cancel(made[0])
    assert [each.id for each in client.messages.batches.list(limit=2)][:3] == made
    assert [each.id for each in client.beta.messages.batches.list(limit=3).data] == made


main()
