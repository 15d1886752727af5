"""What of a stream a client has already: events are counted, comments are not."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from gateway.apis.jobs.job_stream import stream_position
from gateway.core.resume import ReceivedEvents, StreamPosition
from shared.job.errors import BadRequest, StreamReset

EVENTS = [b'data: {"n": %d}\n\n' % n for n in range(6)] + [b"data: [DONE]\n\n"]
STREAM = b"".join(EVENTS)


@pytest.mark.parametrize("after", range(8))
def test_the_rest_of_a_stream_follows_what_the_client_has(after: int) -> None:
    had = ReceivedEvents(StreamPosition(after, crc32(b"".join(EVENTS[:after]))))
    assert had.behind(STREAM) == b"".join(EVENTS[after:])
    assert had.complete
    had.check_end()


def test_how_the_stream_is_cut_into_parts_changes_nothing() -> None:
    cuts = random.Random(1)
    for _ in range(200):
        after = cuts.randrange(8)
        had = ReceivedEvents(StreamPosition(after, crc32(b"".join(EVENTS[:after]))))
        rest, at = b"", 0
        while at < len(STREAM):
            size = cuts.randrange(1, 30)
            rest += had.behind(STREAM[at : at + size])
            at += size
        assert rest == b"".join(EVENTS[after:])


def test_comments_and_blocks_without_data_do_not_count() -> None:
    had = ReceivedEvents(StreamPosition(2, crc32(b"data: 1\n\nevent: x\ndata: 2\n\n")))
    stream = (
        b": queued, position 3\n\ndata: 1\n\nretry: 5\n\nevent: x\ndata: 2\n\n: c\n\ndata: 3\n\n"
    )
    assert had.behind(stream) == b": c\n\ndata: 3\n\n"


def test_another_beginning_is_refused_with_409() -> None:
    had = ReceivedEvents(StreamPosition(3, 0x1234))
    assert had.behind(EVENTS[0] + EVENTS[1]) == b""
    with pytest.raises(StreamReset) as error:
        had.behind(EVENTS[2])
    assert error.value.status == 409
    assert (b"x-should-retry", b"false") in error.value.headers()
    with pytest.raises(StreamReset):
        ReceivedEvents(StreamPosition(0, 1))


def test_more_events_than_there_are() -> None:
    had = ReceivedEvents(StreamPosition(9))
    assert had.behind(STREAM) == b""
    with pytest.raises(BadRequest, match="`after` is 9, but the stream of this job has 7 events"):
        had.check_end()
    had = ReceivedEvents(StreamPosition(9, 0))
    assert had.behind(STREAM) == b""
    with pytest.raises(StreamReset):
        had.check_end()


@pytest.mark.parametrize(
    ("query", "position"),
    [
        (b"", StreamPosition(0, None)),
        (b"after=0", StreamPosition(0, None)),
        (b"after=12&crc32=00ff", StreamPosition(12, 255)),
        (b"crc32=DEADBEEF&after=007", StreamPosition(7, 0xDEADBEEF)),
    ],
)
def test_parameters(query: bytes, position: StreamPosition) -> None:
    assert stream_position(query) == position


@pytest.mark.parametrize(
    "query",
    [b"after=-1", b"after=", b"after=1.5", b"after=" + b"9" * 16, b"after=1&after=2", b"crc32=xyz",
     b"crc32=123456789", b"other=1", b"after=%C2%B2", b"crc32"],
)  # fmt: skip
def test_wrong_parameters(query: bytes) -> None:
    with pytest.raises(BadRequest):
        stream_position(query)
