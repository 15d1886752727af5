"""The log: what is packed comes out again, and adds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.token_log import (
    Delta,
    Entry,
    Prompt,
    Transcript,
    pack_journal,
    parse_entries,
    unpack_journal,
)

numbers = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
deltas = st.builds(Delta, numbers, numbers, st.lists(numbers).map(tuple), texts)
records = st.lists(deltas | st.builds(Prompt, numbers, numbers))


@settings(deadline=None, derandomize=True)
@given(records)
def test_a_journal_comes_out_as_it_went_in(journal: list[Delta | Prompt]) -> None:
    unpacked = unpack_journal(pack_journal(journal))
    assert unpacked == journal
    assert [type(record) for record in unpacked] == [type(record) for record in journal]


def test_no_journal_is_an_empty_one() -> None:
    assert unpack_journal(b"") == []


@pytest.mark.parametrize("pairs", [list, dict], ids=["flat, as scripts see it", "as redis-py"])
def test_entries_are_parsed_as_redis_gives_them(pairs: type) -> None:
    def fields(*flat: bytes) -> Any:
        return list(flat) if pairs is list else dict(zip(flat[::2], flat[1::2], strict=True))

    raw = [
        (b"1-0", fields(b"c", b"chunk")),
        (b"2-0", fields(b"j", b"journal")),
        (b"3-0", fields(b"c", b"c", b"j", b"j")),
        (b"18-0", fields(b"end", b"completed")),
    ]
    assert parse_entries(raw) == [
        Entry(1, b"chunk", b"", ""),
        Entry(2, b"", b"journal", ""),
        Entry(3, b"c", b"j", ""),
        Entry(18, b"", b"", "completed"),
    ]
    assert parse_entries([]) == []


def test_a_transcript_adds_up_by_generation_and_choice() -> None:
    transcript = Transcript.empty()
    transcript.add([Prompt(0, 5), Delta(0, 1, (7,), "b"), Delta(0, 0, (1, 2), "He")])
    transcript.add([Delta(0, 0, (3,), "llo"), Prompt(1, 6), Delta(1, 0, (), "")])
    assert transcript.usage() == {
        "prompt_tokens": 11,
        "completion_tokens": 4,
        "total_tokens": 15,
    }
    assert transcript.choices() == [
        {"index": 0, "text": "Hello", "tokens": 3},
        {"index": 1, "text": "b", "tokens": 1},
        {"index": 2, "text": "", "tokens": 0},
    ]


def test_an_empty_transcript_is_nothing() -> None:
    empty = Transcript.empty()
    assert (empty.choices(), empty.completion_tokens, empty.prompt_tokens) == ([], 0, 0)


@settings(deadline=None, derandomize=True)
@given(st.lists(records))
def test_a_transcript_does_not_depend_on_how_the_journal_is_cut(
    entries: list[list[Delta | Prompt]],
) -> None:
    in_parts, at_once = Transcript.empty(), Transcript.empty()
    for entry in entries:
        in_parts.add(entry)
    at_once.add(record for entry in entries for record in entry)
    assert in_parts == at_once
    spoken = [r for entry in entries for r in entry if isinstance(r, Delta)]
    assert in_parts.completion_tokens == sum(len(delta.token_ids) for delta in spoken)
    assert sum(len(c["text"]) for c in in_parts.choices()) == sum(len(d.text) for d in spoken)
