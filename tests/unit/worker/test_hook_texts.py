"""Where hooks find the texts of answers and chunks, in each format."""

from __future__ import annotations

from typing import Any

import pytest

from worker.hooks.held_output import HeldDelta, HeldEvent, set_texts
from worker.hooks.interface import Answer, Request
from worker.hooks.texts import texts_by_choice

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "id": "x",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "one", "reasoning": "why"}},
        {"index": 1, "message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "stop"},
    ],
}
CHAT_CHUNK = {"choices": [{"index": 1, "delta": {"content": "two"}, "logprobs": {"content": []}}]}
COMPLETION = {"choices": [{"index": 0, "text": "one"}, {"index": 1, "text": "two"}]}
MESSAGE = {"content": [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "one"}]}
MESSAGE_CHUNK = {"type": "content_block_delta", "index": 3, "delta": {"text": "two"}}
OUTPUT = [{"type": "message", "content": [{"type": "output_text", "text": "one"}]}]
RESPONSE = {"object": "response", "output": OUTPUT, "metadata": {"text": "not this"}}
RESPONSE_DELTA = {"type": "response.output_text.delta", "delta": "two"}
RESPONSE_ARGUMENTS = {"type": "response.function_call_arguments.delta", "delta": "{}"}
RESPONSE_END = {"type": "response.completed", "response": RESPONSE}
EMBEDDING = {"data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 2}}


def answer(*parts: Any) -> Answer:
    request = Request("/v1/chat/completions", "job", {}, b"")
    return Answer(request, list(parts), streamed=True, final=True)


@pytest.mark.parametrize(
    ("part", "text", "everything"),
    [
        (CHAT, "one", 'onewhy{"a": 1}'),
        (CHAT_CHUNK, "two", "two"),
        (COMPLETION, "onetwo", "onetwo"),
        (MESSAGE, "one", "whyone"),
        (MESSAGE_CHUNK, "two", "two"),
        (RESPONSE, "one", "one"),
        (RESPONSE_DELTA, "two", "two"),
        (RESPONSE_ARGUMENTS, "", "{}"),
        (RESPONSE_END, "", ""),
        (EMBEDDING, "", ""),
    ],
)
def test_texts(part: Any, text: str, everything: str) -> None:
    assert answer(part).text == text
    assert answer(part, part).text == 2 * text
    assert answer(part).all_text == everything


def test_a_change_reaches_each_text_also_where_it_is_repeated() -> None:
    ended: Any = {
        "type": "response.completed",
        "response": {"output": [{"content": [{"text": "a"}]}]},
    }
    delta: Any = {"type": "response.output_text.delta", "delta": "a", "item_id": "a"}
    answer(ended, delta).change_text(str.upper)
    assert ended["response"]["output"][0]["content"][0]["text"] == "A"
    assert (delta["delta"], delta["item_id"]) == ("A", "a")


def test_texts_by_choice() -> None:
    assert texts_by_choice(CHAT) == {0: "one", 1: ""}
    assert texts_by_choice(CHAT_CHUNK) == {1: "two"}
    assert texts_by_choice(MESSAGE_CHUNK) == {0: "two"}


def test_the_first_delta_of_a_choice_gets_its_text() -> None:
    deltas = [HeldDelta(call, index, [1], "x", None) for call, index in [(0, 0), (1, 1), (0, 0)]]
    set_texts(deltas, [{"choices": [{"index": 0, "text": "A"}, {"index": 3, "text": "D"}]}], n=2)
    assert [delta.text for delta in deltas] == ["A", "D", ""]


@pytest.mark.parametrize(
    ("raw", "part", "is_end"),
    [
        (b'data: {"a": 1}\n\n', {"a": 1}, False),
        (b'event: x\ndata: {"a": 1}\n\n', {"a": 1}, False),
        (b"data: [DONE]\n\n", None, True),
        (b'data: {"error": {"message": "x"}}\n\n', {"error": {"message": "x"}}, True),
        (b'event: error\ndata: {"type": "error"}\n\n', {"type": "error"}, True),
        (b'data: {"a": 1, "error": null}\n\n', {"a": 1, "error": None}, False),
        (b": comment\n\n", None, False),
        (b"data: {broken\n\n", None, False),
    ],
)
def test_events_of_a_stream(raw: bytes, part: Any, is_end: bool) -> None:
    event = HeldEvent.of_stream(raw)
    assert (event.part, event.is_end) == (part, is_end)
    assert event.rendered() == raw
    if part is not None:
        event.part = part | {"b": "é"}
        head, _, _ = raw.partition(b"data: ")
        assert event.rendered().startswith(head + b"data: {")
        assert event.rendered().endswith('"b":"é"}\n\n'.encode())
