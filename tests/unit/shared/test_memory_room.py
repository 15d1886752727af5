"""How much may be accepted between two looks at a server's memory."""

from __future__ import annotations

from shared.fleet.memory_room import MemoryRoom, job_bytes

MB = 1 << 20
LIMIT = 1000 * MB


def room(used: int) -> MemoryRoom:
    made = MemoryRoom(0.9)
    made.looked(used * MB, LIMIT)
    return made


def test_without_a_limit_there_is_room_for_everything() -> None:
    unlimited = MemoryRoom(0.9)
    assert unlimited.take(1e15)
    unlimited.looked(10**12, 0)
    assert unlimited.take(1e15)
    assert not unlimited.is_outdated


def test_nothing_is_accepted_above_the_mark() -> None:
    assert not room(900).take(1 * MB)
    assert not room(5000).take(1 * MB)
    assert room(899).take(1 * MB)


def test_a_small_server_keeps_room_for_buffers() -> None:
    small = MemoryRoom(0.9)
    small.looked(5 * MB, 40 * MB)
    assert not small.take(15.1 * MB)
    assert small.take(15 * MB)


def test_a_large_one_may_take_all_the_room_and_several_half_of_it() -> None:
    assert room(100).take(800 * MB)
    assert not room(100).take(801 * MB)
    several = room(100)
    assert [several.take(100 * MB) for _ in range(5)] == [True] * 4 + [False]


def test_after_an_eighth_of_the_room_it_is_outdated() -> None:
    found = room(100)
    assert found.take(99 * MB)
    assert not found.is_outdated
    assert found.take(1 * MB)
    assert found.is_outdated
    assert room(900).is_outdated  # so that it is known soon when there is room again


def test_what_was_accepted_counts_until_the_second_look() -> None:
    found = room(100)
    assert found.take(300 * MB)
    found.looked(100 * MB, LIMIT)  # it is not there yet
    assert not found.take(200 * MB)
    assert found.take(100 * MB)
    found.looked(400 * MB, LIMIT)
    found.looked(500 * MB, LIMIT)
    assert found.take(400 * MB)


def test_eight_gateways_do_not_accept_more_than_there_is() -> None:
    used, rooms = 0, [room(0) for _ in range(8)]
    for _ in range(200):
        for each in rooms:
            while not each.is_outdated and each.take(5 * MB):
                used += 5
        for each in rooms:
            each.looked(used * MB, LIMIT)
    assert 850 <= used <= 900 + 8 * 5  # one job each, as it is seen behind it


def test_what_a_job_takes() -> None:
    assert job_bytes(0) > 1000
    assert job_bytes(1 << 20) > 1.2 * (1 << 20)
