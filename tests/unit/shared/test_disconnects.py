"""When a process counts as disconnected: by two looks, or if it does not return to a Redis that was
away."""

from __future__ import annotations

from shared.store.redis.disconnects import CONFIRM_S, LATE_S, RETURN_S, SLOW_S, Disconnects


class Looks:
    """Looks that are answered at once; `at` is the time of each."""

    def __init__(self) -> None:
        self.disconnects = Disconnects()
        self.connection_lost = self.disconnects.connection_lost

    def __call__(self, at: float, *channels: str, took: float = 0.0) -> list[str]:
        return self.disconnects.look(set(channels), at, at + took)


def test_a_channel_is_gone_when_two_looks_miss_it() -> None:
    look = Looks()
    assert look(0.0, "a", "b") == []
    assert look(0.1, "b") == []
    assert look.disconnects.pending
    assert look(0.1 + CONFIRM_S, "b") == ["a"]
    assert not look.disconnects.pending
    assert look(9.0, "b") == []


def test_the_second_look_counts_only_some_time_after_the_answer_to_the_first() -> None:
    look = Looks()
    look(0.0, "a")
    assert look(0.1, took=0.02) == []
    assert look(0.1 + CONFIRM_S) == []
    assert look(0.1 + CONFIRM_S + 0.021) == ["a"]


def test_a_process_that_reconnects_between_two_looks_is_not_gone() -> None:
    look = Looks()
    look(0.0, "a")
    assert look(0.1) == []
    assert look(0.2, "a") == []
    assert look(0.3) == []  # missed for the first time again
    assert look(0.4) == ["a"]


def test_what_was_never_seen_is_not_gone() -> None:
    look = Looks()
    assert [look(at / 10) for at in range(50)] == [[]] * 50


def test_a_channel_that_came_back_after_it_was_gone_can_be_gone_again() -> None:
    look = Looks()
    look(0.0, "a")
    assert [look(0.1), look(0.2), look(0.3, "a"), look(0.4), look(0.5)] == [
        [],
        ["a"],
        [],
        [],
        ["a"],
    ]


def test_after_a_lost_connection_processes_have_time_to_return() -> None:
    look = Looks()
    look(0.0, "back", "late", "gone")
    look(0.1, "back", "late")  # missed once before
    look.connection_lost()
    assert look(5.0, "back") == []
    assert look(5.0 + RETURN_S / 2, "back", "late") == []
    assert look(5.0 + RETURN_S - 0.01, "back", "late") == []
    assert look(5.0 + RETURN_S, "back", "late") == ["gone"]
    assert look(20.0, "back", "late") == []


def test_a_connection_lost_again_and_again_starts_the_time_anew() -> None:
    look = Looks()
    look(0.0, "a")
    for at in range(1, 9):
        look.connection_lost()
        assert look(float(at), "b") == []
    assert look(8.0 + RETURN_S, "b") == ["a"]


def test_while_most_processes_are_missing_they_have_more_time() -> None:
    look = Looks()
    look(0.0, "a", "b", "c")
    look.connection_lost()
    assert look(1.0) == []
    assert look(1.0 + RETURN_S, "c") == []
    assert look(1.0 + LATE_S - 0.01, "c") == []
    assert look(1.0 + LATE_S, "c") == ["a", "b"]


def test_an_expected_channel_without_a_subscriber_is_gone() -> None:
    look = Looks()
    look.disconnects.expect({"a", "b"})
    assert look(1.0, "b") == []
    assert look(1.0 + RETURN_S, "b") == ["a"]
    look.disconnects.expect({"b"})  # seen, so nothing new
    assert look(9.0, "b") == []


def test_expected_channels_do_not_make_the_others_wait_longer() -> None:
    """The registry lists processes that have ended long ago."""
    look = Looks()
    look(0.0, "a", "b")
    look.connection_lost()
    look.disconnects.expect({"a", "b", "old", "older", "oldest"})
    assert look(1.0, "b") == []
    assert look(1.0 + RETURN_S, "b") == ["a", "old", "older", "oldest"]


def test_nothing_is_decided_while_redis_shows_no_channel_at_all() -> None:
    look = Looks()
    look.disconnects.expect({"a"})
    assert [look(float(at)) for at in range(30)] == [[]] * 30
    assert look(30.0, "b") == ["a"]


def test_a_slow_look_counts_as_a_lost_connection() -> None:
    """Redis stood still, so processes may have given their connections up."""
    look = Looks()
    look(0.0, "a", "b")
    assert look(0.1, "b", took=SLOW_S + 1) == []
    back_at = 0.1 + SLOW_S + 1
    assert look(back_at + 0.1, "b") == []
    assert look(back_at + 0.2, "b") == []
    assert look(back_at + RETURN_S + 0.01, "b") == ["a"]


def test_one_that_is_seen_after_a_lost_connection_is_watched_as_before() -> None:
    look = Looks()
    look(0.0, "a")
    look.connection_lost()
    assert look(1.0, "a") == []
    assert look(1.1) == []
    assert look(1.2) == ["a"]


def test_what_could_not_be_handled_is_returned_again() -> None:
    look = Looks()
    look(0.0, "a")
    look(0.1)
    assert look(0.2) == ["a"]
    look.disconnects.retry("a")
    look.connection_lost()  # as a rule the reason for it
    assert look(1.0, "b") == []
    assert look(1.0 + RETURN_S, "b") == ["a"]
