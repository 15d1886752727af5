"""The job log: what is packed is parsed again, and adds up to the transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.job.frames import DeltaDecoder, DeltaEncoder, FrameKind, Item, decode, encode, entry_of
from shared.job.job_log import (
    Delta,
    Entry,
    Journal,
    Prompt,
    Transcript,
    make_journal,
    pack_segment,
    parse_segments,
    read_journal,
)

numbers = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
logprobs = st.none() | st.lists(st.tuples(numbers, st.floats(allow_nan=False))).map(tuple)
deltas = st.builds(Delta, numbers, numbers, st.lists(numbers).map(tuple), texts, logprobs)
prompts = st.builds(Prompt, numbers, numbers, logprobs)
records = st.lists(deltas | prompts)

# Journals and items that have much in common, as those of a token stream have.
words = st.sampled_from(["", "a", "b", "ü"])
tokens = st.builds(Delta, st.integers(0, 1), st.integers(0, 1), st.tuples(numbers), words, logprobs)
journals = st.lists(tokens | deltas | prompts)
items = st.lists(words.map(str.encode) | st.binary(max_size=3) | st.tuples(numbers, numbers))

pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def packed(chunks: Sequence[Item] = (), journal: Journal = None) -> bytes:
    """An entry, as a frame holds it."""
    frame = encode("job", 1, FrameKind.CHUNK, chunks or None, journal)
    return entry_of(frame, "job", 1)


def end(state: str) -> bytes:
    """A job's last entry, as the scripts make it."""
    return bytes(pack(None) + pack(state))


def parse(*entries: bytes, first: int = 1) -> list[Entry]:
    """Parse entries that are stored one by one."""
    return parse_segments([pack_segment(seq, [entry]) for seq, entry in enumerate(entries, first)])


def through_the_log(
    journal: list[Delta | Prompt], chunks: Sequence[Item] = ()
) -> list[Delta | Prompt]:
    (entry,) = parse(packed(chunks, make_journal(journal, chunks)))
    assert list(entry.items) == list(chunks)
    return read_journal(entry.journal, entry.items)


def through_a_frame(
    journal: list[Delta | Prompt], chunks: Sequence[Item] = ()
) -> list[Delta | Prompt]:
    frame = encode("job", 1, FrameKind.DELTAS, chunks, make_journal(journal, chunks))
    ((_, _, _, _, journal, payload),) = decode(frame)
    return read_journal(journal, payload)


@settings(deadline=None, derandomize=True)
@given(records)
def test_a_journal_is_read_as_it_was_written(journal: list[Delta | Prompt]) -> None:
    for unpacked in (
        read_journal(make_journal(journal)),
        through_the_log(journal),
        through_a_frame(journal),
    ):
        assert unpacked == journal
        assert [type(record) for record in unpacked] == [type(record) for record in journal]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(journals, items)
def test_a_journal_is_read_as_it_was_written_beside_any_chunks(
    journal: list[Delta | Prompt], chunks: list[Item]
) -> None:
    for unpacked in (
        read_journal(make_journal(journal, chunks), chunks),
        through_the_log(journal, chunks),
        through_a_frame(journal, chunks),
    ):
        assert unpacked == journal
        assert [type(record) for record in unpacked] == [type(record) for record in journal]


@settings(deadline=None, derandomize=True)
@given(journals, items)
def test_plain_tuples_make_the_same_journal(
    journal: list[Delta | Prompt], chunks: list[Item]
) -> None:
    plain: list[Any] = [tuple(record) for record in journal]
    assert pack(make_journal(plain, chunks)) == pack(make_journal(journal, chunks))


def test_no_journal_is_an_empty_one() -> None:
    assert read_journal(None) == []
    assert make_journal([]) is None
    assert make_journal([], [b"text"]) is None


# --- the shorthand ---

USUAL = Delta(0, 0, (77,), "He")


def test_the_usual_token_is_nothing_but_its_id() -> None:
    assert make_journal([USUAL], [b"He"]) == 77
    assert pack(make_journal([USUAL], [(3, 4), b"He"])) == pack([77])
    assert len(packed([b"He"], make_journal([USUAL], [b"He"]))) == 5


def test_token_id_zero_is_not_dropped() -> None:
    first = Delta(0, 0, (0,), "He")
    assert make_journal([first], [b"He"]) == 0
    assert through_the_log([first], [b"He"]) == [first]


def test_several_steps_in_one_entry_are_their_ids() -> None:
    journal = [Delta(0, 0, (n,), text) for n, text in enumerate(["a", "", "ü"])]
    chunks: list[Item] = [b"a", (1, 1), b"", "ü".encode()]
    assert make_journal(journal, chunks) == [0, 1, 2]
    assert read_journal([0, 1, 2], chunks) == journal


@pytest.mark.parametrize(
    ("record", "chunks"),
    [
        pytest.param(USUAL, [], id="no chunk"),
        pytest.param(USUAL, [(3, 4)], id="a template alone"),
        pytest.param(USUAL, [b'"text":"He'], id="more in the payload than the text"),
        pytest.param(Delta(0, 0, (1,), "\n"), [b"\\n"], id="escaped"),
        pytest.param(Delta(0, 0, (1, 2), "He"), [b"He"], id="two tokens"),
        pytest.param(Delta(0, 0, (), "He"), [b"He"], id="no token"),
        pytest.param(Delta(1, 0, (1,), "He"), [b"He"], id="another generation"),
        pytest.param(Delta(0, 1, (1,), "He"), [b"He"], id="another choice"),
        pytest.param(Prompt(0, 7), [b"He"], id="a prompt"),
    ],
)
def test_anything_else_is_written_out(record: Delta | Prompt, chunks: list[Item]) -> None:
    written = make_journal([record], chunks)
    assert pack(written) == pack(make_journal([record])) == pack([record])
    assert read_journal(written, chunks) == [record]


def test_usual_and_other_records_may_be_mixed() -> None:
    chunks: list[Item] = [(9, 9), b"a", b"b", (8, 8), b"c"]
    journal: list[Delta | Prompt] = [
        Prompt(0, 3),
        Delta(0, 0, (1,), "a"),
        Delta(0, 0, (2, 3), "b"),  # two tokens: `b` is still the next payload
        Delta(0, 0, (4,), "b"),
        Delta(0, 1, (5,), "c"),
        Delta(0, 0, (6,), "c"),
    ]
    made = make_journal(journal, chunks)
    assert isinstance(made, list)
    assert [record for record in made if isinstance(record, int)] == [1, 4, 6]
    assert through_the_log(journal, chunks) == journal


def test_the_first_chunk_of_a_stream_does_not_stand_for_a_text() -> None:
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    chunks = [b'{"text":"%s"}' % text for text in (b"", b"a", b"b", b"c")]
    journals: list[list[Delta | Prompt]] = [[Prompt(0, 3)]]
    journals += [[Delta(0, 0, (n,), text)] for n, text in enumerate("abc")]
    for seq, (chunk, journal) in enumerate(zip(chunks, journals, strict=True), 1):
        encoded = encoder.encode([chunk])
        (entry,) = parse(packed(encoded, make_journal(journal, encoded)), first=seq)
        assert entry.seq == seq
        assert decoder.decode(entry.items) == chunk
        assert read_journal(entry.journal, entry.items) == journal


# --- segments ---


def numbered(first: int, last: int) -> list[bytes]:
    """Entries that contain their numbers."""
    return [packed([b"%d" % seq], seq) for seq in range(first, last + 1)]


def segment(first: int, last: int) -> bytes:
    return pack_segment(first, numbered(first, last))


def read(seq: int) -> Entry:
    """Such an entry as it is parsed."""
    return Entry(seq, (b"%d" % seq,), seq, "")


def lost(seq: int) -> Entry:
    return Entry(seq, (), None, "", lost=True)


# Some may begin with what the ones before them had, or leave something out.
spans = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40)), max_size=12).map(
    lambda found: [(first, first + more) for first, more in sorted(found)]
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(items, journals), max_size=30), st.lists(st.integers(1, 10)))
def test_a_log_is_read_as_it_was_written_however_it_is_cut(
    entries_in: list[tuple[list[Item], list[Delta | Prompt]]], cuts: list[int]
) -> None:
    entries = [packed(chunks, make_journal(journal, chunks)) for chunks, journal in entries_in]
    segments, first = [], 1
    for cut in [*cuts, len(entries)]:
        part = entries[first - 1 : first - 1 + cut]
        if part:
            segments.append(pack_segment(first, part))
        first += len(part)
    found = parse_segments(segments)
    assert [entry.seq for entry in found] == list(range(1, len(entries_in) + 1))
    assert [list(entry.items) for entry in found] == [chunks for chunks, _ in entries_in]
    journals = [read_journal(entry.journal, entry.items) for entry in found]
    assert journals == [journal for _, journal in entries_in]
    assert not any(entry.lost or entry.end for entry in found)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(spans, st.integers(0, 350))
def test_every_entry_comes_once_and_what_no_segment_holds_is_lost(
    parts: list[tuple[int, int]], after: int
) -> None:
    held = {seq for first, last in parts for seq in range(first, last + 1)}
    whole = [read(seq) if seq in held else lost(seq) for seq in range(1, max(held, default=0) + 1)]
    segments = [segment(first, last) for first, last in parts]
    assert parse_segments(segments, 0) == whole
    assert parse_segments(segments, after) == whole[after:]
    repeated = [each for each in segments for _ in range(2)]
    assert parse_segments(repeated, after) == whole[after:]
    # Without a first number, reading starts at the first segment that exists.
    assert parse_segments(segments) == whole[min(held, default=1) - 1 :]


@settings(deadline=None, derandomize=True)
@given(spans)
def test_a_segment_that_comes_late_repeats_nothing(parts: list[tuple[int, int]]) -> None:
    segments = [segment(first, last) for first, last in parts]
    known = parse_segments(segments, 0)
    assert parse_segments([*segments, *segments], 0) == known


def test_a_segment_is_its_first_number_its_length_and_its_entries() -> None:
    entries = numbered(7, 9)
    assert pack_segment(7, entries) == pack(7) + pack(3) + b"".join(entries)


def test_entries_are_numbered_from_the_first_of_their_segment() -> None:
    journal = make_journal([Prompt(0, 1)])
    steps = [packed([(1, 2), b"text"]), packed([], journal), packed([(1, 2), b"text"], journal)]
    expected = [
        Entry(41, ((1, 2), b"text"), None, ""),
        Entry(42, (), ((0, 1, None),), ""),
        Entry(43, ((1, 2), b"text"), ((0, 1, None),), ""),
        Entry(44, (), None, "completed"),
    ]
    segments = [pack_segment(41, steps), pack_segment(44, [end("completed")])]
    assert parse_segments(segments) == expected
    assert parse_segments(segments, 40) == expected
    assert parse_segments(segments, 42) == expected[2:]
    assert parse_segments(segments[1:]) == expected[3:]
    assert parse_segments(segments, 44) == parse_segments([], 7) == parse_segments([]) == []


def test_a_number_that_is_missing_is_a_hole() -> None:
    segments = [segment(1, 1), segment(4, 5)]
    assert parse_segments(segments) == [read(1), lost(2), lost(3), read(4), read(5)]
    assert parse_segments(segments, 2) == [lost(3), read(4), read(5)]
    assert parse_segments(segments[1:], 0) == [lost(1), lost(2), lost(3), read(4), read(5)]
    assert parse_segments(segments[1:]) == [read(4), read(5)]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
def test_an_end_is_not_taken_for_a_chunk(state: str) -> None:
    last, step = parse(end(state), packed([state.encode()]))
    assert (last.end, last.items, last.journal, last.lost) == (state, (), None, False)
    assert (step.end, step.items) == ("", (state.encode(),))


def test_an_entry_without_chunks_or_records_is_not_lost() -> None:
    assert parse(packed()) == [Entry(1, (), None, "")]


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536, 3 << 20])
def test_a_payload_of_any_length_is_parsed(size: int) -> None:
    chunks = [b"\xff" * size]
    entry, behind = parse(packed(chunks, make_journal([USUAL], chunks)), packed([b"x"]))
    assert entry.items == (b"\xff" * size,)
    assert read_journal(entry.journal, entry.items) == [USUAL]
    assert behind.items == (b"x",)


@pytest.mark.parametrize("first", [1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFFFF])
def test_a_log_may_be_of_any_length(first: int) -> None:
    assert [entry.seq for entry in parse_segments([segment(first, first + 2)])] == [
        first, first + 1, first + 2,
    ]  # fmt: skip


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
    deltas = [r for entry in entries for r in entry if isinstance(r, Delta)]
    assert in_parts.completion_tokens == sum(len(delta.token_ids) for delta in deltas)
    assert sum(len(c["text"]) for c in in_parts.choices()) == sum(len(d.text) for d in deltas)
