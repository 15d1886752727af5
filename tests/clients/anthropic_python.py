"""Anthropic's SDK for Python, unmodified."""

from __future__ import annotations

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


main()
