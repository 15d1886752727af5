"""The log: what is packed is read again, from an entry and from a frame, and adds up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.job.job import new_job_id
from shared.job.log import (
    ENDS,
    MALFORMED,
    Delta,
    DeltaDecoder,
    DeltaEncoder,
    Item,
    Position,
    Prompt,
    Transcript,
    frame_head,
    frames,
    make_journal,
    pack_entry,
    pack_frame,
    read_entries,
    read_entry,
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


AT = Position(1_796_000_000_000_000, 7)


def through_the_log(
    journal: list[Delta | Prompt], chunks: Sequence[Item] = ()
) -> list[Delta | Prompt]:
    entry = read_entry(AT, pack_entry(make_journal(journal, chunks), chunks))
    assert list(entry.items) == list(chunks)
    return read_journal(entry.journal, entry.items)


def through_a_frame(
    journal: list[Delta | Prompt], chunks: Sequence[Item] = ()
) -> list[Delta | Prompt]:
    entry = pack_entry(make_journal(journal, chunks), chunks)
    ((_, _, _, found, items, _),) = frames(pack_frame(frame_head("job", 1), 1, entry))
    return read_journal(found, items or ())


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


def test_no_journal_is_an_empty_one() -> None:
    assert read_journal(None) == []
    assert make_journal([]) is None
    assert make_journal([], [b"text"]) is None


# --- the shorthand ---

USUAL = Delta(0, 0, (77,), "He")


def test_the_usual_token_is_nothing_but_its_id() -> None:
    assert make_journal([USUAL], [b"He"]) == 77
    assert pack(make_journal([USUAL], [(3, 4), b"He"])) == pack([77])
    assert len(pack_entry(make_journal([USUAL], [b"He"]), [b"He"])) == 6


def test_token_id_zero_is_not_dropped() -> None:
    first = Delta(0, 0, (0,), "He")
    assert make_journal([first], [b"He"]) == 0
    assert through_the_log([first], [b"He"]) == [first]


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


def test_the_first_chunk_of_a_stream_does_not_stand_for_a_text() -> None:
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    chunks = [b'{"text":"%s"}' % text for text in (b"", b"a", b"b", b"c")]
    journals: list[list[Delta | Prompt]] = [[Prompt(0, 3)]]
    journals += [[Delta(0, 0, (n,), text)] for n, text in enumerate("abc")]
    for seq, (chunk, journal) in enumerate(zip(chunks, journals, strict=True), 1):
        encoded = encoder.encode([chunk])
        entry = read_entry(Position(1, seq), pack_entry(make_journal(journal, encoded), encoded))
        assert entry.position.number == seq
        assert decoder.decode(entry.items) == chunk
        assert read_journal(entry.journal, entry.items) == journal


# --- entries and frames ---

names = st.sampled_from(["claimed", "requeued", "restarted", *sorted(ENDS)])
details = st.lists(st.none() | st.integers(0, 2**32) | st.binary(max_size=20), max_size=5)
events = st.none() | st.tuples(names, details).map(lambda pair: (pair[0], *pair[1]))
positions = st.builds(Position, st.integers(1, 2**53), st.integers(1, 2**32))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(positions, items, journals, events), max_size=8))
def test_a_log_and_a_message_are_read_as_they_were_written(
    written: list[tuple[Position, list[Item], list[Delta | Prompt], Any]],
) -> None:
    packed = [
        pack_entry(make_journal(journal, chunks), chunks, event)
        for _, chunks, journal, event in written
    ]
    stored = [
        [str(at).encode(), [b"d", entry]] for (at, *_), entry in zip(written, packed, strict=True)
    ]
    found = read_entries(stored)
    assert [(e.position, list(e.items), read_journal(e.journal, e.items)) for e in found] == [
        (at, chunks, journal) for at, chunks, journal, _ in written
    ]
    assert [(e.event, *e.details) if e.event else None for e in found] == [e for *_, e in written]
    assert [e.size for e in found] == [len(each) for each in packed]
    job_id = new_job_id(4)
    message = b"".join(
        pack_frame(frame_head(job_id, at.generation), at.number, entry)
        for (at, *_), entry in zip(written, packed, strict=True)
    )
    got = list(frames(message))
    assert [frame[:3] for frame in got] == [(job_id.encode(), *at) for at, *_ in written]
    assert [read_journal(frame[3], frame[4] or ()) for frame in got] == [
        journal for _, _, journal, _ in written
    ]
    assert [frame[5] is None for frame in got] == [event is None for *_, event in written]


@pytest.mark.parametrize("state", sorted(ENDS))
def test_an_end_is_not_taken_for_a_chunk(state: str) -> None:
    last = read_entry(AT, pack_entry(None, None, (state, None, 0)))
    step = read_entry(AT, pack_entry(None, [state.encode()]))
    assert (last.event, last.details, last.items) == (state, (None, 0), ())
    assert (step.event, step.items) == ("", (state.encode(),))


def test_positions_are_in_the_order_of_the_log() -> None:
    texts = [b"9-1", b"9-2", b"10-3", b"1796000000000000-4", b"1796000000000001-5"]
    found = [Position.read(text) for text in texts]
    assert found == sorted(found)
    assert [str(each).encode() for each in found] == texts


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536, 3 << 20])
def test_an_entry_may_be_of_any_length(size: int) -> None:
    chunks: list[Item] = [b"\xff" * size]
    entry = read_entry(AT, pack_entry(make_journal([USUAL], chunks), chunks))
    assert entry.items == (b"\xff" * size,)
    assert read_journal(entry.journal, entry.items) == [USUAL]


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\xc0", b"\xc0\xc0", b"\xc0\xc0\x90"])
def test_a_damaged_entry_is_an_error(packed: bytes) -> None:
    with pytest.raises(MALFORMED):
        read_entry(AT, packed)


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


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(records, max_size=6))
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
