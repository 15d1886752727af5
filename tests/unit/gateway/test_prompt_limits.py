"""Limits on the number and the length of prompts and messages."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core import prompt_limits
from gateway.core.prompt_limits import (
    PromptSize,
    check_input,
    check_messages,
    check_prompt_size,
    count_inputs,
    prompt_size,
)
from shared.api.endpoint import InputKind, Policy
from shared.job.errors import BadRequest
from tests.harness.settings import Settings

CHAT = Policy(input=InputKind.MESSAGES, choices=True, service_tier=True)
COMPLETIONS = Policy(input=InputKind.PROMPT, choices=True, service_tier=True)


@pytest.fixture
def ten(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(prompt_limits, "MAX_SEQUENCES", 10)
    monkeypatch.setattr(prompt_limits, "MAX_MESSAGES", 10)
    return Settings()


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"prompt": [1, 2, 3] * 100}, 1),
        ({"prompt": [[1, 2, 3], [4]]}, 2),
        ({"prompt": ["a"] * 10}, 10),
        ({"prompt": []}, 1),
    ],
)
def test_prompts_are_counted(fields: dict[str, Any], count: int) -> None:
    assert count_inputs("prompt", fields["prompt"], 10, 10) == count


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (COMPLETIONS, {"prompt": ["a"] * 10}),
        (COMPLETIONS, {"prompt": ["a"] * 5, "n": 2}),
        (COMPLETIONS, {"prompt": ["a"] * 5, "n": None}),
        (COMPLETIONS, {"prompt": [], "n": "many"}),
        (COMPLETIONS, {"prompt": "x", "n": 64}),  # vLLM has a limit of its own for this
        (COMPLETIONS, {"prompt": "x", "messages": [{}] * 11}),
        (CHAT, {"messages": [{}] * 10, "n": 64}),
        (CHAT, {"messages": [], "prompt": ["a"] * 11}),
    ],
)
def test_input_within_the_limits_of_its_endpoint_is_accepted(
    policy: Policy, fields: dict[str, Any], ten: Settings
) -> None:
    check_input(policy, fields, ten)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 11}, "prompt"),
        ({"prompt": [[1]] * 11}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 3}, "n"),
    ],
)
def test_too_many_sequences_are_refused(fields: dict[str, Any], param: str, ten: Settings) -> None:
    with pytest.raises(BadRequest, match="at most 10") as caught:
        check_input(COMPLETIONS, fields, ten)
    assert caught.value.param == param


TEXT = {"role": "user", "content": "abc"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "de"}, {"type": "image_url"}, None]}


@pytest.mark.parametrize(
    ("fields", "tokens", "chars"),
    [
        ({}, 0, 0),
        ({"prompt": "abc"}, 0, 0),
        ({"prompt": "abc", "truncate_prompt_tokens": None}, 0, 0),
        ({"prompt": "abc", "truncate_prompt_tokens": 1}, 0, 3),
        ({"prompt": ["a", "abcd"], "truncate_prompt_tokens": -1}, 0, 4),
        ({"prompt": [1, 2], "truncate_prompt_tokens": 1}, 2, 0),
        ({"prompt": [[1, 2], [1], [], "abc"]}, 2, 0),
        ({"prompt": []}, 0, 0),
        ({"messages": [TEXT, PARTS, None, {}], "truncate_prompt_tokens": 1}, 0, 5),
        ({"messages": "what is this", "truncate_prompt_tokens": 1}, 0, 0),
    ],
)
def test_the_size_of_the_longest_prompt(fields: dict[str, Any], tokens: int, chars: int) -> None:
    kind = InputKind.MESSAGES if "messages" in fields else InputKind.PROMPT
    assert prompt_size(kind, fields) == PromptSize(tokens, chars)


INPUTS = Policy(InputKind.INPUT)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(prompt_limits, "MAX_SEQUENCES", 2)
    monkeypatch.setattr(prompt_limits, "MAX_MESSAGES", 3)
    return Settings(max_inputs=3)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (InputKind.INPUT, {"input": ["a"] * 3}),
        (InputKind.INPUT, {"input": [1] * 99}),
        (InputKind.INPUT, {"input": [[1] * 99] * 3}),
        (InputKind.INPUT, {"input": [TEXT] * 3}),
        (InputKind.INPUT, {"messages": [[TEXT] * 3] * 3, "documents": ["a"] * 9}),
        (InputKind.PAIRS, {"queries": "a", "documents": ["b"] * 3}),
        (InputKind.PAIRS, {"text_1": ["a"] * 3, "text_2": {"content": [{"text": "b"}] * 9}}),
        (InputKind.DOCUMENTS, {"query": "a", "documents": ["b"] * 3}),
        (InputKind.TEXTS, {"texts": ["a"] * 3, "truncate": "END"}),
        (InputKind.ITEMS, {"query": [1] * 99, "items": ["b"] * 3}),
        (InputKind.TOKENS, {"tokens": [1] * 99}),
        (InputKind.TEXT_TO_TOKENIZE, {"prompt": "a" * 99}),
        (InputKind.QUESTIONS, {"state": ["a"] * 99}),
    ],
)
def test_inputs_within_the_limits(kind: InputKind, fields: dict[str, Any], three: Settings) -> None:
    check_input(Policy(kind), fields, three)


@pytest.mark.parametrize(
    ("policy", "fields", "param"),
    [
        (INPUTS, {"input": ["a"] * 4}, "input"),
        (INPUTS, {"input": [[1]] * 4}, "input"),
        (INPUTS, {"input": [TEXT] * 4}, "input"),
        (INPUTS, {"input": [[TEXT]] * 4}, "input"),
        (INPUTS, {"input": [[TEXT] * 4]}, "input"),
        (INPUTS, {"messages": [[TEXT] * 4]}, "messages"),
        (Policy(InputKind.PAIRS), {"queries": "a", "items": ["b"] * 4}, "items"),
        (Policy(InputKind.DOCUMENTS), {"query": "a", "documents": ["b"] * 4}, "documents"),
        (Policy(InputKind.TEXTS), {"images": ["a"] * 4}, "images"),
        (Policy(InputKind.CONVERSATIONS, choices=True), {"messages": [[TEXT]] * 3}, "messages"),
        (Policy(InputKind.CONVERSATIONS, choices=True), {"messages": [[TEXT] * 4]}, "messages"),
        (Policy(InputKind.ANY, choices=True), {"input": ["a"] * 3}, "input"),
    ],
)
def test_too_many_inputs_are_refused(
    policy: Policy, fields: dict[str, Any], param: str, three: Settings
) -> None:
    with pytest.raises(BadRequest, match="at most") as caught:
        check_input(policy, fields, three)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("kind", "fields", "size"),
    [
        (InputKind.INPUT, {"input": "abc"}, PromptSize(0, 0)),
        (InputKind.INPUT, {"input": [[1, 2], [1]]}, PromptSize(2, 0)),
        (InputKind.INPUT, {"input": ["abc", "d"], "truncate_prompt_tokens": -1}, PromptSize(0, 3)),
        (
            InputKind.DOCUMENTS,
            {"query": "a", "documents": ["bcd", {"content": [{"text": "ef"}, {"text": "gh"}]}],
             "max_tokens_per_doc": 9},
            PromptSize(0, 4, "max_tokens_per_doc"),
        ),
        (InputKind.TEXTS, {"texts": ["ab", "c"]}, PromptSize(0, 2, "texts")),
        (InputKind.TEXTS, {"texts": ["ab", "c"], "truncate": "NONE"}, PromptSize(0, 0)),
        (InputKind.TEXT_TO_TOKENIZE, {"prompt": "abc"}, PromptSize(0, 3, "prompt")),
        (InputKind.TEXT_TO_TOKENIZE, {"messages": [TEXT, TEXT]}, PromptSize(0, 6, "messages")),
        (InputKind.TOKENS, {"tokens": [1, 2, 3]}, PromptSize(3, 0)),
    ],
)  # fmt: skip
def test_the_size_of_other_inputs(
    kind: InputKind, fields: dict[str, Any], size: PromptSize
) -> None:
    assert prompt_size(kind, fields) == size


def test_a_text_that_is_only_tokenized_has_a_limit() -> None:
    size = prompt_size(InputKind.TEXT_TO_TOKENIZE, {"prompt": "a" * 70_000})
    with pytest.raises(BadRequest, match="send at most 65536 characters") as caught:
        check_prompt_size(size, {"max_model_len": 100})
    assert caught.value.param == "prompt"


def test_too_many_messages_are_refused() -> None:
    check_messages("messages", [TEXT] * 10, 10)
    with pytest.raises(BadRequest, match="at most 10 messages, not 11"):
        check_messages("messages", [TEXT] * 11, 10)


@pytest.mark.parametrize(
    ("prompt", "card"),
    [
        (PromptSize(0, 0), {"max_model_len": 100}),
        (PromptSize(1 << 16, 1 << 16), {"max_model_len": 100}),
        (PromptSize(0, 160_000), {"max_model_len": 10_000}),
        (PromptSize(100_000, 0), {"max_model_len": 100_000}),
        (PromptSize(10**6, 10**7), {}),
        (PromptSize(10**6, 10**7), {"max_model_len": None}),
    ],
)
def test_a_prompt_of_a_usual_length_is_accepted(prompt: PromptSize, card: dict[str, Any]) -> None:
    check_prompt_size(prompt, card)


@pytest.mark.parametrize(
    ("prompt", "card", "param"),
    [
        (PromptSize(0, 160_001), {"max_model_len": 10_000}, "truncate_prompt_tokens"),
        (PromptSize(0, 65_537), {"max_model_len": 100}, "truncate_prompt_tokens"),
        (PromptSize(65_537, 0), {"max_model_len": 100}, "prompt"),
        (PromptSize(100_001, 0), {"max_model_len": 100_000}, "prompt"),
    ],
)
def test_a_prompt_that_is_far_too_long_is_refused(
    prompt: PromptSize, card: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        check_prompt_size(prompt, card)
    assert caught.value.param == param
