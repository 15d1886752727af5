"""The hashes of a prompt's prefixes, and what a conversation begins with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.prompt_prefixes import conversation_start, prompt_prefixes
from shared.api.endpoint import InputKind
from shared.job.rules import BLOCK_BYTES, DEPTHS, HASH_BYTES

QUESTION, ANSWER = "a question " * 500, "an answer " * 1500
FIRST = [{"role": "system", "content": "be kind"}, {"role": "user", "content": QUESTION}]
SECOND = [*FIRST, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "why?"}]


def hashes(
    value: Any, kind: InputKind = InputKind.MESSAGES, field: str = "messages", tenant: str = "a"
) -> list[bytes]:
    body = json.dumps({"model": "m", field: value, "stream": True}).encode()
    found = prompt_prefixes(kind, body, tenant)
    return [found[at : at + HASH_BYTES] for at in range(0, len(found), HASH_BYTES)]


def test_a_turn_has_the_prefixes_of_the_turns_before_it() -> None:
    first, second = hashes(FIRST), hashes(SECOND)
    assert (len(first), len(second)) == (1, 2), "4 KiB, and 16 KiB"
    assert second[0] == first[0] != second[1]


def test_other_texts_tenants_and_short_prompts_share_none() -> None:
    other = [{"role": "user", "content": QUESTION}]
    assert not set(hashes(FIRST)) & {*hashes(other), *hashes(FIRST, tenant="b")}
    assert hashes([{"role": "user", "content": "hi"}]) == []


@pytest.mark.parametrize("n", range(len(DEPTHS)))
def test_a_prefix_ends_where_its_depth_says(n: int) -> None:
    body = b'"prompt"'.ljust(DEPTHS[n] * BLOCK_BYTES, b"x")
    whole, shorter, other = (
        prompt_prefixes(InputKind.PROMPT, each, "") for each in (body, body[:-1], body[:-1] + b"y")
    )
    assert (len(whole), len(shorter)) == ((n + 1) * HASH_BYTES, n * HASH_BYTES)
    assert whole.startswith(shorter)
    assert whole != other


@pytest.mark.parametrize(
    ("kind", "field", "n"),
    [
        (InputKind.BLOCKS, "messages", 2),
        (InputKind.RESPONSE, "input", 2),
        (InputKind.PROMPT, "prompt", 2),
        (InputKind.PROMPT, "other", 0),
        (InputKind.INPUT, "input", 0),
        (InputKind.AUDIO, "file", 0),
    ],
)
def test_which_endpoints_have_prefixes(kind: InputKind, field: str, n: int) -> None:
    assert len(hashes(ANSWER * 2, kind, field)) == n


@pytest.mark.parametrize(
    ("messages", "start"),
    [
        (FIRST, QUESTION[:4096]),
        (SECOND, QUESTION[:4096]),
        ("a prompt", "a prompt"),
        ([{"role": "user", "content": [{"type": "image_url"}, {"text": "what?"}]}], "what?"),
        ([{"role": "user", "content": [None, {"text": 3}]}], ""),
        ([{"role": "system", "content": "be kind"}], ""),
        ([1, 2, 3], ""),
        ([], ""),
        (None, ""),
        ({"a": 1}, ""),
    ],
)
def test_what_a_conversation_begins_with(messages: Any, start: str) -> None:
    assert conversation_start(InputKind.MESSAGES, {"messages": messages}) == start
    assert conversation_start(InputKind.AUDIO, {"messages": messages}) == ""
