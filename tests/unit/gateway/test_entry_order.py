"""EntryOrder: which entry is next, by frames and by parts of the log. Nothing waits here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from gateway.core.entry_order import MALFORMED, EntryOrder
from gateway.core.log_event import LogEvent, ReadMode

from shared.job.errors import StreamReset
from shared.job.frames import FrameKind, Item
from shared.job.job_log import Entry

CHUNKS, DELTAS = ReadMode.CHUNKS, ReadMode.DELTAS


def following(generation: int = 1) -> EntryOrder:
    order = EntryOrder(0)
    assert order.accept(generation)
    return order


def entries(first: int, count: int, end: str = "", tokens: int | None = None) -> list[Entry]:
    """One token each; with `end`, one entry more."""
    found = [Entry(seq, (b"%d" % seq,), 5, "") for seq in range(first, first + count)]
    return [*found, Entry(first + count, (), None, end, tokens=tokens)] if end else found


def deliver(order: EntryOrder, mode: ReadMode, *live: Entry) -> None:
    """Deliver entries as live frames of the order's generation."""
    for entry in live:
        if mode is CHUNKS:
            found = order.next_chunk(entry.seq, order.generation, entry.journal, entry.items)
            assert found is not None
        else:
            order.next_deltas(entry.seq, entry.journal, entry.items)


def replay(
    order: EntryOrder, mode: ReadMode, generation: int, log: list[Entry], at_once: int = 1000
) -> list[LogEvent]:
    """Read the log in parts of so many entries; `log` may begin with entries that are skipped."""
    events: list[LogEvent] = []
    while True:
        after = order.begin_replay()
        rest = [entry for entry in log if entry.seq > after]
        more = len(rest) > at_once
        events += order.add_part(mode, generation, rest[:at_once], more=more)
        if not more:
            return events


def numbers(events: Sequence[LogEvent]) -> list[int]:
    return [event.seq for event in events]


@pytest.mark.parametrize(
    ("seq", "generation", "is_next"),
    [(1, 1, True), (2, 1, False), (0, 1, False), (1, 2, False), (1, 0, False)],
)
def test_only_the_next_chunk_of_the_same_lease_is_accepted(
    seq: int, generation: int, is_next: bool
) -> None:
    order = following()
    data = order.next_chunk(seq, generation, 5, [b"a"])
    assert data == (b"a" if is_next else None)
    assert order.last_seq == int(is_next)


def test_a_malformed_chunk_is_not_counted_as_delivered() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 1))
    with pytest.raises(MALFORMED):
        order.next_chunk(2, 1, 5, 7)  # type: ignore[arg-type]
    assert order.last_seq == 1
    order.read_whole()
    assert order.begin_replay() == 0
    assert numbers(replay(order, CHUNKS, 1, entries(1, 3))) == [2, 3]


def test_a_replay_reads_what_was_not_delivered_unless_the_whole_log_is_wanted() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 3))
    assert order.begin_replay() == 3
    order.read_whole()
    assert order.begin_replay() == 0
    order.add_part(CHUNKS, 1, entries(1, 2), more=True)
    assert order.begin_replay() == 2, "what was compared is not read again"
    assert numbers(order.add_part(CHUNKS, 1, entries(3, 2), more=True)) == [4]
    assert order.begin_replay() == 4


def test_a_comparison_that_is_interrupted_begins_again() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 4))
    order.read_whole()
    assert order.begin_replay() == 0
    order.add_part(CHUNKS, 1, entries(1, 2), more=True)
    assert (order.last_seq, order.delivered_seq) == (2, 4)
    assert not order.accept(2), "entries were delivered"
    order.read_whole()
    assert order.begin_replay() == 0
    changed = [Entry(1, (b"one",), 5, ""), *entries(2, 3)]
    with pytest.raises(StreamReset):
        order.add_part(CHUNKS, 1, changed)


def test_a_request_for_the_whole_log_during_a_replay_is_kept() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 3))
    assert order.begin_replay() == 3
    order.read_whole()  # the connection to Redis was lost while the log was being read
    order.add_part(CHUNKS, 1, entries(4, 1))
    assert order.begin_replay() == 0


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
def test_a_reader_from_the_middle_reads_the_whole_log_first(mode: ReadMode) -> None:
    order = EntryOrder(3)
    assert order.begin_replay() == 0
    assert numbers(replay(order, mode, 1, entries(1, 4))) == [4]
    order.read_whole()
    assert order.begin_replay() == 0
    assert numbers(replay(order, mode, 2, entries(1, 5))) == [5]
    changed = [*entries(1, 1), Entry(2, (b"two",), 5, ""), *entries(3, 3)]
    order.read_whole()
    with pytest.raises(StreamReset):
        replay(order, mode, 2, changed)


def test_a_part_of_the_log_continues_live_frames_and_is_continued_by_them() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 1))
    events = replay(order, CHUNKS, 1, entries(2, 2))
    assert [(event.seq, event.payload) for event in events] == [(2, b"2"), (3, b"3")]
    assert order.next_chunk(4, 1, 5, [b"4"]) == b"4"
    order.next_end(5, 4)
    assert order.ended


@pytest.mark.parametrize("generated", [1, 3])
@pytest.mark.parametrize("live", [True, False])
def test_an_end_with_another_number_of_tokens_is_an_error(generated: int, live: bool) -> None:
    order = following()
    if live:
        replay(order, CHUNKS, 1, entries(1, 2))
        with pytest.raises(StreamReset):
            order.next_end(3, generated)
    else:
        with pytest.raises(StreamReset):
            replay(order, CHUNKS, 1, entries(1, 2, "completed", generated))
    assert not order.ended


# --- another lease ---


@pytest.mark.parametrize(
    ("delivered", "known", "generation", "accepted"),
    [(0, 1, 1, True), (0, 1, 3, True), (0, 3, 1, False), (2, 1, 2, False), (2, 2, 1, False)],
)
def test_frames_of_another_lease_follow_at_once_only_if_nothing_was_delivered(
    delivered: int, known: int, generation: int, accepted: bool
) -> None:
    order = following(known)
    replay(order, CHUNKS, known, entries(1, delivered))
    assert order.accept(generation) is accepted
    assert order.generation == (generation if accepted else known)


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
@pytest.mark.parametrize("delivered", [1, 3, 5])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_a_later_lease_continues_the_same_log(mode: ReadMode, delivered: int, at_once: int) -> None:
    order = following()
    deliver(order, mode, *entries(1, delivered))
    order.read_whole()
    events = replay(order, mode, 2, entries(1, 5), at_once)
    assert numbers(events) == list(range(delivered + 1, 6))
    assert order.generation == 2
    deliver(order, mode, *entries(6, 1))
    order.next_end(7, 6)


CHANGED: list[Sequence[Item]] = [(b"x",), (b"", b"2"), ((0, 0), b"2"), (), (b"2", b"")]


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
@pytest.mark.parametrize("n_entries", [3, 4])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_another_entry_in_place_of_a_delivered_one_is_an_error(
    mode: ReadMode, n_entries: int, at_once: int
) -> None:
    for at in (1, 2, 3):
        for items in CHANGED if mode is CHUNKS else CHANGED[:1]:
            order = following()
            deliver(order, mode, *entries(1, 3))
            log = entries(1, n_entries)
            log[at - 1] = Entry(at, items, 5, "")
            order.read_whole()
            with pytest.raises(StreamReset):
                replay(order, mode, 1, log, at_once)


def test_the_same_text_in_other_entries_is_another_log() -> None:
    order = following()
    deliver(order, CHUNKS, Entry(1, (b"a",), 5, ""), Entry(2, (b"bc",), 5, ""))
    order.read_whole()
    with pytest.raises(StreamReset):
        replay(order, CHUNKS, 1, [Entry(1, (b"ab",), 5, ""), Entry(2, (b"c",), 5, "")])


def test_chunks_with_several_items_and_without_any_are_compared() -> None:
    order = following()
    log = [
        Entry(1, (b"a", (0, 1), b"b"), 5, ""),
        Entry(2, (), 5, ""),
        Entry(3, (b"", b""), 5, ""),
        Entry(4, ((1, 0), b"z"), 5, ""),
    ]
    deliver(order, CHUNKS, *log)
    order.read_whole()
    assert replay(order, CHUNKS, 2, log) == []


# --- what the log lacks ---


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_log_that_is_shorter_than_what_was_delivered_is_an_error(
    mode: ReadMode, count: int, at_once: int
) -> None:
    for end in ("", "failed") if count < 2 else ("",):
        order = following()
        deliver(order, mode, *entries(1, 3))
        order.read_whole()
        with pytest.raises(StreamReset):
            replay(order, mode, 1, entries(1, count, end), at_once)


def test_an_end_in_place_of_a_delivered_entry_is_an_error() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 2), Entry(3, (), None, ""))
    order.read_whole()
    with pytest.raises(StreamReset):
        replay(order, CHUNKS, 1, entries(1, 2, "failed"))


def test_an_entry_in_place_of_a_delivered_end_is_an_error() -> None:
    order = following()
    deliver(order, CHUNKS, *entries(1, 2))
    order.next_end(3, 2)
    order.read_whole()
    assert replay(order, CHUNKS, 1, entries(1, 2, "completed", 2)) == []
    order.read_whole()
    with pytest.raises(StreamReset):
        replay(order, CHUNKS, 1, entries(1, 3))


def test_the_last_entry_shows_whether_the_log_lacks_delivered_ones() -> None:
    order = following()
    replay(order, CHUNKS, 1, entries(1, 3))
    order.check_last(entries(3, 1)[0])
    for last in (None, entries(2, 1)[0], Entry(3, (), None, "failed")):
        with pytest.raises(StreamReset):
            order.check_last(last)


def test_a_log_with_lost_entries_is_an_error() -> None:
    with pytest.raises(StreamReset):
        replay(following(), CHUNKS, 1, [Entry(1, (), None, "", lost=True)])


def test_a_log_that_can_not_be_decoded_is_an_error() -> None:
    with pytest.raises(StreamReset):
        replay(following(), CHUNKS, 1, [Entry(1, (3,), 5, "")])  # type: ignore[arg-type]


def test_the_end_in_the_log_is_an_event() -> None:
    order = following()
    events = replay(order, DELTAS, 1, entries(1, 1, "completed", 1))
    assert [(event.kind, event.last) for event in events] == [
        (FrameKind.DELTAS, False),
        (FrameKind.ENDED, True),
    ]
    assert order.ended
