"""Clients that were told to come back, and have not had the time to."""

from __future__ import annotations

from shared.fleet.promised_room import PromisedRoom

LANE, OTHER = ("p", "default"), ("p", "flex")


def test_they_count_until_their_time() -> None:
    room = PromisedRoom()
    assert room.before(LANE, 0) == 0
    room.promise(LANE, 5)
    room.promise(LANE, 7)
    room.promise(LANE, 6)  # with the one before it, as both come for the same room
    assert [room.before(LANE, now) for now in (0, 4.9, 5, 6.5, 7)] == [3, 3, 2, 2, 0]
    assert room.before(OTHER, 0) == 0


def test_what_is_kept_is_bounded() -> None:
    room = PromisedRoom()
    for at in range(20_000):
        room.promise(LANE, at)
    assert room.before(LANE, -1) == 10_000
    for n in range(2_000):
        room.promise((str(n), "default"), 1e9)
    assert room.before(LANE, -1) == 0
    assert room.before(("1999", "default"), 0) == 1
