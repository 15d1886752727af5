"""Frames: what is encoded comes out again, however many stand in one message.

Frames that Lua makes are read in tests/redis.
"""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.channel import LAST, FrameKind, decode, encode, encode_head
from shared.token_log import NO_CHUNKS, pack_chunks

frames = st.tuples(
    st.from_regex(r"job_[0-9a-f]{27}", fullmatch=True),
    st.integers(0, 2**53),
    st.sampled_from(FrameKind),
    st.binary(max_size=2_000),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(frames, max_size=20))
def test_frames_come_out_as_they_went_in(sent: list[tuple[str, int, FrameKind, bytes]]) -> None:
    message = b"".join(encode(*frame) for frame in sent)
    got = list(decode(message))
    assert got == [(job.encode(), seq, kind, payload) for job, seq, kind, payload in sent]
    assert all(type(frame[3]) is bytes for frame in got)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=300) | st.tuples(st.integers(0, 9999), st.integers(0, 9999))))
def test_items_come_out_as_they_went_in(items: list[bytes | tuple[int, int]]) -> None:
    head = encode_head("job", 7, FrameKind.CHUNK)
    for packed in (encode("job", 7, FrameKind.CHUNK, items), head + pack_chunks(items)):
        assert list(decode(packed)) == [(b"job", 7, FrameKind.CHUNK, tuple(items))]


def test_a_step_without_chunks_is_a_frame_too() -> None:
    head = encode_head("job", 7, FrameKind.CHUNK)
    assert list(decode(head + NO_CHUNKS)) == [(b"job", 7, FrameKind.CHUNK, None)]


def test_a_frame_may_be_larger_than_any_default_limit() -> None:
    payload = b"x" * (3 << 20)
    ((_, _, _, got),) = decode(encode("job", 1, FrameKind.RESULT, payload))
    assert got == payload


@pytest.mark.parametrize("use_bin_type", [True, False], ids=["bin", "raw, as Lua packs"])
def test_both_ways_to_pack_bytes_are_read(use_bin_type: bool) -> None:
    packed = msgpack.packb(("job", 0, 5, b"\xff\x00"), use_bin_type=use_bin_type)
    assert list(decode(packed)) == [(b"job", 0, 5, b"\xff\x00")]


def test_nothing_holds_no_frames() -> None:
    assert list(decode(b"")) == []


def test_kinds_have_numbers_of_their_own_and_three_are_last() -> None:
    assert sorted(FrameKind) == list(range(6))
    assert {FrameKind.DONE, FrameKind.RESULT, FrameKind.ENDED} == LAST
