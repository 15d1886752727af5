"""Frames: what is encoded is decoded again, with any number of frames in one message.

Frames that Lua makes are read in tests/redis.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.job.frames import LAST, FrameKind, decode, encode, encode_head, entries_of, entry_of

from shared.job.job import new_job_id

ids = st.from_regex(r"job_[0-9a-f]{27}", fullmatch=True)
kinds = st.sampled_from(FrameKind)
payloads = st.binary(max_size=2_000)
items = st.lists(st.binary(max_size=300) | st.tuples(st.integers(0, 9999), st.integers(0, 9999)))
numbers = st.integers(0, 2**32 - 1)
records = st.tuples(numbers, numbers, st.lists(numbers).map(tuple), st.binary(max_size=50))
journals = (
    st.none() | numbers | st.lists(numbers | records | st.tuples(numbers, numbers)).map(tuple)
)
generations = st.sampled_from([1, 0x7F, 0x80, 0xFFFF])
frames = st.tuples(ids, st.integers(0, 2**53), kinds, payloads, journals, generations)

# Where a number takes a byte more.
EDGES = [0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFFFF]
seqs = st.sampled_from(EDGES) | st.integers(1, 2**32 - 1)


@settings(deadline=None, derandomize=True)
@given(st.lists(frames, max_size=20))
def test_frames_are_decoded_as_they_were_encoded(
    sent: list[tuple[str, int, FrameKind, bytes, Any, int]],
) -> None:
    message = b"".join(encode(*frame) for frame in sent)
    got = list(decode(message))
    assert got == [
        (job.encode(), seq, generation, kind, journal, payload)
        for job, seq, kind, payload, journal, generation in sent
    ]
    assert all(type(frame[5]) is bytes for frame in got)


@settings(deadline=None, derandomize=True)
@given(items, journals)
def test_items_are_decoded_as_they_were_encoded(
    chunks: list[bytes | tuple[int, int]], journal: Any
) -> None:
    (got,) = decode(encode("job", 7, FrameKind.CHUNK, chunks, journal))
    assert got == (b"job", 7, 1, FrameKind.CHUNK, journal, tuple(chunks))


def test_a_step_without_chunks_is_a_frame_too() -> None:
    (got,) = decode(encode("job", 7, FrameKind.CHUNK, None))
    assert got == (b"job", 7, 1, FrameKind.CHUNK, None, None)


@pytest.mark.parametrize("seq", [0, 1, *EDGES])
def test_a_head_with_what_is_packed_behind_it_is_a_frame(seq: int) -> None:
    behind = msgpack.packb(None) + msgpack.packb((200, "text/plain", b"x"), use_bin_type=False)
    head = encode_head("job", seq, FrameKind.RESULT)
    assert head + behind == encode("job", seq, FrameKind.RESULT, (200, "text/plain", b"x"))


# --- the entry in a frame ---


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    seqs,
    st.sampled_from([FrameKind.CHUNK, FrameKind.DELTAS]),
    st.none() | items,
    journals,
    generations,
)
def test_the_entry_in_a_frame_is_its_journal_and_its_payload(
    seq: int, kind: FrameKind, chunks: Any, journal: Any, generation: int
) -> None:
    job_id = new_job_id(4)
    entry = entry_of(
        encode(job_id, seq, kind, chunks, journal, generation), job_id, seq, generation
    )
    assert entry == encode("", 0, 0, chunks, journal)[len(encode_head("", 0, 0)) :]


@pytest.mark.parametrize("seq", [1, *EDGES])
def test_the_entry_is_found_behind_a_number_of_any_size(seq: int) -> None:
    job_id = new_job_id(1)
    frame = encode(job_id, seq, FrameKind.CHUNK, [b"text"], 77)
    assert entry_of(frame, job_id, seq) == msgpack.packb(77) + b"\x91\xa4text"


@settings(deadline=None, derandomize=True)
@given(seqs, st.integers(0, 40))
def test_the_entries_of_frames_that_follow_each_other_are_those_of_each(
    last: int, before: int
) -> None:
    job_id, first = new_job_id(1), max(1, last - before)
    numbers = range(first, last + 1)
    frames = [encode(job_id, seq, FrameKind.CHUNK, [b"%d" % seq], seq) for seq in numbers]
    entries = [entry_of(frame, job_id, seq) for frame, seq in zip(frames, numbers, strict=True)]
    assert entries_of(frames, job_id, first) == entries


def test_no_frames_have_no_entries() -> None:
    assert entries_of([], new_job_id(1), 128) == []


@pytest.mark.parametrize("shards", [1, 10, 100, 1000])
def test_the_id_of_a_job_is_a_short_string(shards: int) -> None:
    """As `entry_of` and lua/prelude.lua take it to be."""
    job_id = new_job_id(shards)
    assert msgpack.packb(job_id) == bytes([0xA0 + len(job_id)]) + job_id.encode()


# --- messages ---


def test_a_frame_may_be_larger_than_any_default_limit() -> None:
    payload = b"x" * (3 << 20)
    ((_, _, _, _, _, got),) = decode(encode("job", 1, FrameKind.RESULT, payload))
    assert got == payload


@pytest.mark.parametrize("use_bin_type", [True, False], ids=["bin", "raw, as Lua packs"])
def test_both_ways_to_pack_bytes_are_read(use_bin_type: bool) -> None:
    packed = msgpack.packb(("job", 0, 5, None, b"\xff\x00"), use_bin_type=use_bin_type)
    assert list(decode(packed)) == [(b"job", 0, 5, None, b"\xff\x00")]


def test_nothing_holds_no_frames() -> None:
    assert list(decode(b"")) == []


def test_kinds_have_numbers_of_their_own_and_three_are_last() -> None:
    assert sorted(FrameKind) == list(range(7))
    assert {FrameKind.DONE, FrameKind.RESULT, FrameKind.ENDED} == LAST
