"""Lists in a body: what is refused at its first wrong element, and what vLLM is to judge."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.input_shapes import check_shapes
from shared.api.endpoint import InputKind
from shared.job.errors import BadRequest

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
SCORED = {"content": [{"type": "text", "text": "x"}]}
MESSAGES, RESPONSE, INPUT = InputKind.MESSAGES, InputKind.RESPONSE, InputKind.INPUT


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (MESSAGES, "messages", [USER]),
        (MESSAGES, "messages", []),
        (MESSAGES, "messages", "hello"),
        (MESSAGES, "messages", [{"role": "user"}]),
        (MESSAGES, "messages", [{"role": "user", "content": ["plain", {"text": "no type"}]}]),
        (MESSAGES, "messages", [{"role": "critic", "content": [{"type": "text", "text": "x"}]}]),
        (MESSAGES, "messages", [{"role": "assistant", "content": None, "tool_calls": [CALL]}]),
        (MESSAGES, "messages", [{"role": "tool", "tool_call_id": "c1", "content": "x"}]),
        (
            MESSAGES,
            "messages",
            [{"role": "tool", "tool_call_id": "c1", "content": "", "name": None}],
        ),
        (MESSAGES, "messages", [{"role": "user", "content": "x", "type": "tool_use"}]),
        (MESSAGES, "messages", [{"author": {"role": "user"}, "content": [{"text": "x"}]}]),
        (MESSAGES, "prompt", [{}]),  # vLLM ignores it
        (MESSAGES, "documents", [{"title": "a", "text": "b"}]),
        (MESSAGES, "structured_outputs", {"choice": ["a", "b"]}),
        (InputKind.CONVERSATIONS, "messages", [[USER], [USER, USER]]),
        (InputKind.BLOCKS, "messages", [{"role": "user", "content": [{"type": "text"}]}]),
        (InputKind.BLOCKS, "system", [{"type": "text", "text": "x", "cache_control": {}}]),
        (RESPONSE, "input", [USER, ANSWER, {**ANSWER, "id": "m", "status": "completed"}]),
        (RESPONSE, "input", [{"role": "assistant", "content": "x"}]),
        (RESPONSE, "input", [{"role": "assistant", "content": []}]),
        (RESPONSE, "input", [{"type": "reasoning", "summary": []}]),
        (RESPONSE, "input", [{"id": "m", "type": None, "role": "user", "content": "x"}]),
        (
            RESPONSE,
            "input",
            [
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
                {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""},
                {"type": "custom_tool_call_output", "call_id": "c", "output": [{}]},
                {"type": "item_reference", "id": "i"},
            ],
        ),
        (InputKind.PROMPT, "prompt", [1, 2]),
        (InputKind.PROMPT, "prompt", [[1, 2], [3]]),
        (InputKind.PROMPT, "prompt", ["a", "b"]),
        (InputKind.PROMPT, "prompt", [[]]),
        (INPUT, "input", [USER]),
        (INPUT, "input", [[USER], [USER]]),
        (INPUT, "messages", [[USER], [USER]]),
        (InputKind.PAIRS, "documents", ["a", SCORED]),
        (InputKind.PAIRS, "queries", SCORED),
        (InputKind.TEXTS, "inputs", [{"content": [{"type": "text", "text": "x"}]}]),
        (InputKind.QUESTIONS, "questions", {"a": {"type": "boolean"}}),
        (InputKind.ANY, "documents", [{"text": "x"}]),
        (InputKind.ANY, "documents", [SCORED]),
    ],
)
def test_left_to_vllm(kind: InputKind, field: str, value: Any) -> None:
    check_shapes(kind, {field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value", "param"),
    [
        (RESPONSE, "input", [{}] * 1000, "input[0].role"),
        (RESPONSE, "input", [USER, []], "input[1]"),
        (RESPONSE, "input", [{"type": "nothing"}], "input[0].type"),
        (RESPONSE, "input", [{"type": ["message"]}], "input[0].type"),
        (RESPONSE, "input", [{"type": "message", "role": "user"}], "input[0].content"),
        (RESPONSE, "input", [{"role": "user", "content": [{}]}], "input[0].content"),
        (RESPONSE, "input", [{"role": "nobody", "content": "x"}], "input[0].role"),
        (RESPONSE, "input", [{"type": "function_call"}], "input[0].call_id"),
        (RESPONSE, "input", [{"type": "item_reference", "id": ["x"]}], "input[0].id"),
        (RESPONSE, "input", [{**ANSWER, "status": 5}], "input[0].content"),
        (RESPONSE, "tools", [{}], "tools[0]"),
        (RESPONSE, "include", [1.5], "include"),
        (MESSAGES, "messages", [USER, {"content": "x"}], "messages[1].role"),
        (MESSAGES, "messages", ["hello"], "messages[0]"),
        (MESSAGES, "messages", [USER, {"role": ["user"], "content": "x"}], "messages[1].role"),
        (MESSAGES, "messages", [{"role": "user", "content": 5}], "messages[0].content"),
        (MESSAGES, "messages", [{"role": "user", "content": None}], "messages[0].content"),
        (MESSAGES, "messages", [{"role": "critic", "content": [1.5]}], "messages[0].content"),
        (
            MESSAGES,
            "messages",
            [{"role": "critic", "content": "", "tool_calls": [{}]}],
            "messages[0].tool_calls",
        ),
        (MESSAGES, "messages", [{"author": {}}], "messages[0].author"),
        (MESSAGES, "documents", [{"a": 1}], "documents[0]"),
        (MESSAGES, "allowed_token_ids", [True], "allowed_token_ids"),
        (MESSAGES, "structured_outputs", {"choice": [1.5]}, "structured_outputs.choice"),
        (MESSAGES, "response_format", {"structures": [{}]}, "response_format.structures"),
        (InputKind.CONVERSATIONS, "messages", [[USER], []], "messages[1]"),
        (InputKind.CONVERSATIONS, "messages", [[USER, {}]], "messages[0][1].role"),
        (InputKind.BLOCKS, "messages", [{**USER, "content": [{}]}], "messages[0].content[0].type"),
        (InputKind.BLOCKS, "system", [{"type": "text", "text": 5}], "system[0].text"),
        (InputKind.PROMPT, "prompt", [1.5] * 1000, "prompt"),
        (InputKind.PROMPT, "prompt", [1, True], "prompt"),
        (InputKind.PROMPT, "prompt", [1, "x"], "prompt"),
        (InputKind.PROMPT, "prompt", [[1], [1.5]], "prompt[1]"),
        (InputKind.PROMPT, "prompt", [[-1]], "prompt[0]"),
        (InputKind.TOKENS, "tokens", [2**70], "tokens"),
        (INPUT, "input", [{}], "input[0].role"),
        (INPUT, "input", ["x", {}], "input"),
        (InputKind.PAIRS, "documents", ["a", 5], "documents[1]"),
        (InputKind.DOCUMENTS, "query", {"content": [{}]}, "query"),
        (InputKind.TEXTS, "images", [{}], "images"),
        (InputKind.TEXTS, "inputs", [{"content": [{}]}], "inputs[0]"),
        (InputKind.ITEMS, "label_token_ids", ["x"], "label_token_ids"),
        (InputKind.QUESTIONS, "questions", {"a": {}}, "questions.a"),
        (InputKind.QUESTIONS, "videos", [None], "videos"),
    ],
)  # fmt: skip
def test_refused_at_the_first_wrong_element(
    kind: InputKind, field: str, value: Any, param: str
) -> None:
    with pytest.raises(BadRequest) as refusal:
        check_shapes(kind, {field: value})
    assert refusal.value.param == param
