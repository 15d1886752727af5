"""How many prompts a call may bring, and how long those may be that are truncated."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts import check_truncated, sequences, truncated_chars
from shared.errors import BadRequest


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
    ("fields", "chars"),
    [
        ({"prompt": "abc"}, 0),
        ({"prompt": "abc", "truncate_prompt_tokens": None}, 0),
        ({"prompt": "abc", "truncate_prompt_tokens": 1}, 3),
        ({"prompt": ["a", "abcd"], "truncate_prompt_tokens": -1}, 4),
        ({"prompt": [1, 2], "truncate_prompt_tokens": 1}, 0),
        ({"messages": [TEXT, PARTS, None, {}], "truncate_prompt_tokens": 1}, 5),
        ({"messages": "what is this", "truncate_prompt_tokens": 1}, 0),
    ],
)
def test_characters_that_are_to_be_truncated(fields: dict[str, Any], chars: int) -> None:
    assert truncated_chars(fields) == chars


@pytest.mark.parametrize(
    ("chars", "card"),
    [
        (0, {"max_model_len": 100}),
        (1 << 16, {"max_model_len": 100}),
        (160_000, {"max_model_len": 10_000}),
        (10**7, {}),
        (10**7, {"max_model_len": None}),
    ],
)
def test_a_text_that_is_not_far_too_long_is_taken(chars: int, card: dict[str, Any]) -> None:
    check_truncated(chars, card)


@pytest.mark.parametrize(
    ("chars", "card"), [(160_001, {"max_model_len": 10_000}), (65_537, {"max_model_len": 100})]
)
def test_a_text_that_is_far_too_long_is_refused(chars: int, card: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="too long") as caught:
        check_truncated(chars, card)
    assert caught.value.param == "truncate_prompt_tokens"
