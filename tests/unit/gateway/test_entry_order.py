"""EntryOrder: which entry is next, by frames and by parts of the log. Nothing waits here."""

from __future__ import annotations

import pytest

from gateway.streaming.entry_order import MALFORMED, EntryOrder
from gateway.streaming.log_event import ReadMode
from shared.api.errors import StreamReset
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Entry


def following(after: int = 0, generation: int = 1) -> EntryOrder:
    order = EntryOrder(after)
    assert order.switch_attempt(generation)
    return order


def entries(first: int, count: int, end: str = "", tokens: int | None = None) -> list[Entry]:
    """One token each; with `end`, one entry more."""
    found = [Entry(seq, (b"%d" % seq,), 5, "") for seq in range(first, first + count)]
    return [*found, Entry(first + count, (), None, end, tokens=tokens)] if end else found


@pytest.mark.parametrize(
    ("seq", "generation", "is_next"),
    [(1, 1, True), (2, 1, False), (0, 1, False), (1, 2, False), (1, 0, False)],
)
def test_only_the_next_chunk_of_the_same_attempt_is_accepted(
    seq: int, generation: int, is_next: bool
) -> None:
    order = following()
    data = order.next_chunk(seq, generation, 5, [b"a"])
    assert data == (b"a" if is_next else None)
    assert order.last_seq == int(is_next)


def test_a_malformed_chunk_is_not_counted_as_delivered() -> None:
    order = following()
    with pytest.raises(MALFORMED):
        order.next_chunk(1, 1, 5, 7)  # type: ignore[arg-type]
    assert order.last_seq == 0
    order.forget_decoder()
    assert order.replay_after(ReadMode.CHUNKS) == 0


@pytest.mark.parametrize(
    ("mode", "after", "read_after"),
    [(ReadMode.CHUNKS, 0, 0), (ReadMode.CHUNKS, 3, 0), (ReadMode.DELTAS, 3, 3)],
)
def test_chunks_are_decoded_from_the_first_entry_on(
    mode: ReadMode, after: int, read_after: int
) -> None:
    assert EntryOrder(after).replay_after(mode) == read_after


def test_a_part_of_the_log_continues_live_frames_and_is_continued_by_them() -> None:
    order = following()
    assert order.next_chunk(1, 1, 5, [b"1"]) == b"1"
    part = entries(2, 2)
    assert order.check_part(1, 1, part)
    events = order.add_part(ReadMode.CHUNKS, 1, part)
    assert [(event.seq, event.payload) for event in events] == [(2, b"2"), (3, b"3")]
    assert order.next_chunk(4, 1, 5, [b"4"]) == b"4"
    order.next_end(5, 4)
    assert order.ended


def test_entries_that_were_delivered_are_not_delivered_again() -> None:
    order = following(after=2)
    events = order.add_part(ReadMode.CHUNKS, 0, entries(1, 4))
    assert [event.seq for event in events] == [3, 4]


@pytest.mark.parametrize("generated", [1, 3])
@pytest.mark.parametrize("live", [True, False])
def test_an_end_with_another_number_of_tokens_is_an_error(generated: int, live: bool) -> None:
    order = following()
    if live:
        order.add_part(ReadMode.CHUNKS, 0, entries(1, 2))
        with pytest.raises(StreamReset):
            order.next_end(3, generated)
    else:
        with pytest.raises(StreamReset):
            order.add_part(ReadMode.CHUNKS, 0, entries(1, 2, "completed", generated))
    assert not order.ended


@pytest.mark.parametrize(
    ("delivered", "generation", "outcome"),
    [(0, 1, True), (0, 3, True), (2, 1, False), (2, 3, StreamReset)],
)
def test_a_later_attempt_replaces_one_of_which_nothing_was_delivered(
    delivered: int, generation: int, outcome: object
) -> None:
    order = following(generation=2 if delivered else 1)
    order.add_part(ReadMode.CHUNKS, 0, entries(1, delivered))
    if outcome is StreamReset:
        with pytest.raises(StreamReset):
            order.switch_attempt(generation)
    else:
        assert order.switch_attempt(generation) is outcome


def test_a_log_that_lacks_delivered_entries_is_noticed() -> None:
    order = following()
    order.add_part(ReadMode.CHUNKS, 0, entries(1, 3))
    assert not order.check_part(3, 1, [])
    assert order.check_part(3, 1, entries(4, 1))
    order.check_last(entries(3, 1)[0])
    for last in (None, entries(2, 1)[0], Entry(3, (), None, "failed")):
        with pytest.raises(StreamReset):
            order.check_last(last)


def test_a_log_with_lost_entries_is_an_error() -> None:
    with pytest.raises(StreamReset):
        following().check_part(0, 1, [Entry(1, (), None, "", lost=True)])


def test_a_log_that_can_not_be_decoded_is_an_error() -> None:
    with pytest.raises(StreamReset):
        following().add_part(ReadMode.CHUNKS, 0, [Entry(1, (3,), 5, "")])  # type: ignore[arg-type]


def test_the_end_in_the_log_is_an_event() -> None:
    order = following()
    events = order.add_part(ReadMode.DELTAS, 0, entries(1, 1, "completed", 1))
    assert [(event.kind, event.last) for event in events] == [
        (FrameKind.DELTAS, False),
        (FrameKind.ENDED, True),
    ]
    assert order.ended
