"""How many prompts a call may bring, and how long those may be that are truncated."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.jobs.prompt_limits import Longest, check_length, check_messages, longest, sequences
from shared.api.errors import BadRequest


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"messages": []}, 1),
        ({"prompt": "x"}, 1),
        ({"prompt": [1, 2, 3] * 100}, 1),
        ({"prompt": [[1, 2, 3], [4]]}, 2),
        ({"prompt": ["a"] * 10}, 10),
        ({"prompt": ["a"] * 5, "n": 2}, 10),
        ({"prompt": ["a"] * 5, "n": None}, 5),
        ({"prompt": [], "n": "many"}, 1),
        ({"prompt": "x", "n": 64}, 64),
    ],
)
def test_sequences_are_counted(fields: dict[str, Any], count: int) -> None:
    assert sequences(fields, 10) == count


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 11}, "prompt"),
        ({"prompt": [[1]] * 11}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 3}, "n"),
    ],
)
def test_too_many_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="at most 10") as caught:
        sequences(fields, 10)
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
def test_the_longest_prompts(fields: dict[str, Any], tokens: int, chars: int) -> None:
    assert longest(fields) == Longest(tokens, chars)


def test_messages_are_counted() -> None:
    for fields in ({"messages": [TEXT] * 10}, {"messages": "x" * 11}, {"prompt": "x"}):
        check_messages(fields, 10)
    with pytest.raises(BadRequest, match="at most 10 messages, not 11"):
        check_messages({"messages": [TEXT] * 11}, 10)


@pytest.mark.parametrize(
    ("prompt", "card"),
    [
        (Longest(0, 0), {"max_model_len": 100}),
        (Longest(1 << 16, 1 << 16), {"max_model_len": 100}),
        (Longest(0, 160_000), {"max_model_len": 10_000}),
        (Longest(100_000, 0), {"max_model_len": 100_000}),
        (Longest(10**6, 10**7), {}),
        (Longest(10**6, 10**7), {"max_model_len": None}),
    ],
)
def test_a_prompt_that_is_not_far_too_long_is_taken(prompt: Longest, card: dict[str, Any]) -> None:
    check_length(prompt, card)


@pytest.mark.parametrize(
    ("prompt", "card", "param"),
    [
        (Longest(0, 160_001), {"max_model_len": 10_000}, "truncate_prompt_tokens"),
        (Longest(0, 65_537), {"max_model_len": 100}, "truncate_prompt_tokens"),
        (Longest(65_537, 0), {"max_model_len": 100}, "prompt"),
        (Longest(100_001, 0), {"max_model_len": 100_000}, "prompt"),
    ],
)
def test_a_prompt_that_is_far_too_long_is_refused(
    prompt: Longest, card: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        check_length(prompt, card)
    assert caught.value.param == param
