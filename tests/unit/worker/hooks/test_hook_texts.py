"""Where hooks find the texts of answers and chunks, in each format."""

from __future__ import annotations

from typing import Any

import pytest

from worker.plugins.hooks.hook_types import Answer, Request

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
    return Answer(request, list(parts), streamed=True)


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
