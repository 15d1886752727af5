"""The log: what is packed comes out again, and adds up."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.envelope import Folder, Item, Unfolder
from shared.token_log import (
    NO_CHUNKS,
    Delta,
    Entry,
    Prompt,
    Transcript,
    pack_chunks,
    pack_journal,
    parse_entries,
    unpack_journal,
)

numbers = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
deltas = st.builds(Delta, numbers, numbers, st.lists(numbers).map(tuple), texts)
records = st.lists(deltas | st.builds(Prompt, numbers, numbers))

# Journals and items that have much in common, as those of a token stream have.
words = st.sampled_from(["", "a", "b", "ü"])
tokens = st.builds(Delta, st.integers(0, 1), st.integers(0, 1), st.tuples(numbers), words)
journals = st.lists(tokens | deltas | st.builds(Prompt, numbers, numbers))
items = st.lists(words.map(str.encode) | st.binary(max_size=3) | st.tuples(numbers, numbers))


def parse(*entries: bytes, after: int = 0) -> list[Entry]:
    return parse_entries(entries, after)


@settings(deadline=None, derandomize=True)
@given(records)
def test_a_journal_comes_out_as_it_went_in(journal: list[Delta | Prompt]) -> None:
    unpacked = unpack_journal(pack_journal(journal))
    assert unpacked == journal
    assert [type(record) for record in unpacked] == [type(record) for record in journal]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(journals, items)
def test_a_journal_comes_out_as_it_went_in_whatever_chunks_stand_before_it(
    journal: list[Delta | Prompt], chunks: list[Item]
) -> None:
    packed = pack_chunks(chunks) if chunks else NO_CHUNKS
    (entry,) = parse(packed + pack_journal(journal, chunks))
    assert list(entry.items) == chunks
    unpacked = unpack_journal(entry.journal, entry.items)
    assert unpacked == journal
    assert [type(record) for record in unpacked] == [type(record) for record in journal]


def test_no_journal_is_an_empty_one() -> None:
    assert unpack_journal(b"") == []
    assert pack_journal([]) == b""


# --- the shorthand ---

USUAL = Delta(0, 0, (77,), "He")


def test_the_usual_token_is_nothing_but_its_id() -> None:
    assert pack_journal([USUAL], [b"He"]) == msgpack.packb(77)
    assert pack_journal([USUAL], [(3, 4), b"He"]) == msgpack.packb(77)
    assert len(pack_chunks([b"He"]) + pack_journal([USUAL], [b"He"])) == 5


def test_several_steps_in_one_entry_are_their_ids() -> None:
    journal = [Delta(0, 0, (n,), text) for n, text in enumerate(["a", "", "ü"])]
    chunks: list[Item] = [b"a", (1, 1), b"", "ü".encode()]
    assert pack_journal(journal, chunks) == b"\x00\x01\x02"
    assert unpack_journal(b"\x00\x01\x02", chunks) == journal


@pytest.mark.parametrize(
    ("record", "chunks"),
    [
        pytest.param(USUAL, [], id="no chunk"),
        pytest.param(USUAL, [(3, 4)], id="an envelope alone"),
        pytest.param(USUAL, [b'"text":"He'], id="more in the middle than the text"),
        pytest.param(Delta(0, 0, (1,), "\n"), [b"\\n"], id="escaped"),
        pytest.param(Delta(0, 0, (1, 2), "He"), [b"He"], id="two tokens"),
        pytest.param(Delta(0, 0, (), "He"), [b"He"], id="no token"),
        pytest.param(Delta(1, 0, (1,), "He"), [b"He"], id="another generation"),
        pytest.param(Delta(0, 1, (1,), "He"), [b"He"], id="another choice"),
        pytest.param(Prompt(0, 7), [b"He"], id="a prompt"),
    ],
)
def test_anything_else_is_written_out(record: Delta | Prompt, chunks: list[Item]) -> None:
    packed = pack_journal([record], chunks)
    assert packed == pack_journal([record])
    assert unpack_journal(packed, chunks) == [record]


def test_usual_and_other_records_may_be_mixed() -> None:
    chunks: list[Item] = [(9, 9), b"a", b"b", (8, 8), b"c"]
    journal = [
        Prompt(0, 3),
        Delta(0, 0, (1,), "a"),
        Delta(0, 0, (2, 3), "b"),  # two tokens: `b` stays the next middle
        Delta(0, 0, (4,), "b"),
        Delta(0, 1, (5,), "c"),
        Delta(0, 0, (6,), "c"),
    ]
    packed = pack_journal(journal, chunks)
    assert unpack_journal(packed, chunks) == journal
    unpacker = msgpack.Unpacker()
    unpacker.feed(packed)
    assert [record for record in unpacker if isinstance(record, int)] == [1, 4, 6]


def test_the_first_chunk_of_a_stream_does_not_stand_for_a_text() -> None:
    folder, unfolder = Folder(), Unfolder()
    chunks = [b'{"text":"%s"}' % text for text in (b"", b"a", b"b", b"c")]
    journals: list[list[Delta | Prompt]] = [[Prompt(0, 3)]]
    journals += [[Delta(0, 0, (n,), text)] for n, text in enumerate("abc")]
    for seq, (chunk, journal) in enumerate(zip(chunks, journals, strict=True)):
        folded = folder.fold([chunk])
        (entry,) = parse(pack_chunks(folded) + pack_journal(journal, folded), after=seq)
        assert unfolder.unfold(entry.items) == chunk
        assert unpack_journal(entry.journal, entry.items) == journal


# --- entries ---


def test_entries_are_numbered_by_their_place() -> None:
    chunks, journal = pack_chunks([(1, 2), b"text"]), pack_journal([Prompt(0, 1)])
    raw = [chunks, NO_CHUNKS + journal, chunks + journal, msgpack.packb("completed")]
    expected = [
        Entry(1, ((1, 2), b"text"), b"", ""),
        Entry(2, (), journal, ""),
        Entry(3, ((1, 2), b"text"), journal, ""),
        Entry(4, (), b"", "completed"),
    ]
    assert parse_entries(raw, 0) == expected
    assert parse_entries(raw[2:], 2) == expected[2:]
    assert [entry.seq for entry in parse_entries(raw, 40)] == [41, 42, 43, 44]
    assert parse_entries([], 7) == []


def test_an_empty_entry_is_a_hole() -> None:
    step = pack_chunks([b"x"])
    before, hole, behind = parse(step, b"", step)
    assert (before.lost, hole.lost, behind.lost) == (False, True, False)
    assert hole == Entry(2, (), b"", "", lost=True)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
def test_an_end_is_not_taken_for_a_chunk(state: str) -> None:
    end, step = parse(msgpack.packb(state), pack_chunks([state.encode()]))
    assert (end.end, end.items, end.journal, end.lost) == (state, (), b"", False)
    assert (step.end, step.items) == ("", (state.encode(),))


def test_an_entry_without_chunks_or_records_is_not_lost() -> None:
    assert parse(NO_CHUNKS) == [Entry(1, (), b"", "")]


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536, 3 << 20])
def test_a_middle_of_any_length_is_parsed(size: int) -> None:
    (entry,) = parse(pack_chunks([b"\xff" * size]) + pack_journal([USUAL]))
    assert entry.items == (b"\xff" * size,)
    assert unpack_journal(entry.journal, entry.items) == [USUAL]


# --- what it adds up to ---


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
