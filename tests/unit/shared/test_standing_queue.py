"""A burst drains; a queue that stands does not."""

from __future__ import annotations

from shared.fleet.standing_queue import INTERVAL_S, StandingQueue

TARGET_S = 5.0


def refused(*waits: tuple[float, float | None]) -> list[bool]:
    queue = StandingQueue(TARGET_S)
    return [queue.seen(wait_s, at_s) for at_s, wait_s in waits]


def test_a_burst_that_drains_is_not_refused() -> None:
    assert not any(refused((0, 60), (4, 40), (8, 10), (9.9, 4), (10, 30), (19, 30)))


def test_all_are_refused_once_the_shortest_wait_of_the_interval_is_too_long() -> None:
    late = INTERVAL_S
    assert refused((0, 6), (late / 2, 90), (late, 6), (late + 1, 5.1), (late + 2, 5)) == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_it_begins_anew_after_a_wait_that_was_short_or_not_known() -> None:
    assert not any(refused((0, 6), (5, 5), (11, 6), (20, 6)))
    assert not any(refused((0, 6), (5, None), (11, 6), (20, 6)))
    assert refused((0, 6), (5, 5), (8, 6), (14, 6), (18, 6))[-1]


def test_after_that_each_too_long_wait_is_refused_until_none_was_for_an_interval() -> None:
    stands = [(0.0, 6.0), (INTERVAL_S, 6.0)]
    soon = INTERVAL_S + 5
    assert refused(*stands, (soon, 4), (soon + 1, 6), (soon + 2, 4), (soon + 3, 6))[2:] == [
        False,
        True,
        False,
        True,
    ]
    late = [(INTERVAL_S + n, 4.0) for n in range(1, 12)]
    assert not any(refused(*stands, *late, (2 * INTERVAL_S + 2, 6))[2:])


def test_what_nobody_has_seen_does_not_stand() -> None:
    assert not any(refused((100, 60), (100 + INTERVAL_S + 1, 60), (100 + INTERVAL_S + 2, 60)))
