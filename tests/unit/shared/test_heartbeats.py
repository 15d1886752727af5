"""When a worker is silent: its heartbeat channel stays, in time that the observer has watched."""

from __future__ import annotations

import pytest

from shared.store.redis import keys
from shared.store.redis.heartbeats import BEAT_S, Heartbeats

SILENCE_S = 1.5
LOOK_S = 0.1


class Fleet:
    """A worker's beats and an observer's looks, on one clock."""

    def __init__(self) -> None:
        self.heartbeats = Heartbeats(SILENCE_S)
        self.at = 100.0
        self.silent: list[str] = []
        self.returned: list[str] = []

    def look(self, *beats: tuple[str, int]) -> None:
        channels = {keys.heartbeat_channel(*each) for each in beats}
        changes = self.heartbeats.look(channels, self.at, LOOK_S)
        self.silent += [keys.worker_of_heartbeat(name) for name in changes.silent]
        self.returned += [keys.worker_of_heartbeat(name) for name in changes.returned]

    def watch(self, seconds: float, *still: str, alive: str = "") -> None:
        """Look for so long; the heartbeats of `still` are those of the beginning."""
        for _ in range(round(seconds / LOOK_S)):
            self.at += LOOK_S
            beats = [(worker, 0) for worker in still]
            self.look(*beats, *([(alive, int(self.at / BEAT_S))] if alive else []))


def test_a_worker_whose_heartbeat_stays_is_silent_once() -> None:
    fleet = Fleet()
    fleet.watch(SILENCE_S - LOOK_S, "still", alive="alive")
    assert fleet.silent == []
    fleet.watch(30, "still", alive="alive")
    assert (fleet.silent, fleet.returned) == (["still"], [])


def test_the_whole_takes_less_than_two_seconds_from_the_last_beat() -> None:
    assert SILENCE_S + LOOK_S < 2.0


@pytest.mark.parametrize(
    ("pause_s", "longest_s"),
    [
        (0.1, SILENCE_S),
        (0.9, SILENCE_S + 0.9),  # of a late look at most 0.3 s count
        (1.2, 2 * SILENCE_S),  # the observer, or Redis, stood still: the whole time again
        (60.0, 62.0),
    ],
)
def test_time_in_which_nobody_looked_does_not_count(pause_s: float, longest_s: float) -> None:
    fleet = Fleet()
    fleet.watch(0.6, "still")
    fleet.at += pause_s
    fleet.look(("still", 0))
    assert fleet.silent == []
    fleet.watch(longest_s, "still")
    assert fleet.silent == ["still"]


def test_after_a_pause_of_redis_a_worker_has_time_for_its_next_beat() -> None:
    for pause_s in (0.3, 0.8, 1.0, 1.2, 5.0, 300.0):
        fleet = Fleet()
        fleet.watch(BEAT_S, "w")  # it was about to beat
        fleet.at += pause_s
        fleet.look(("w", 0))
        fleet.watch(0.5, "w")  # it connects again
        fleet.watch(1.0, alive="w")
        assert fleet.silent == [], pause_s


def test_another_connection_begins_anew() -> None:
    fleet = Fleet()
    fleet.watch(SILENCE_S - LOOK_S, "still")
    fleet.heartbeats.connection_lost()
    fleet.watch(SILENCE_S - LOOK_S, "still")
    assert fleet.silent == []
    fleet.watch(3 * LOOK_S, "still")
    assert fleet.silent == ["still"]


def test_a_silent_worker_that_beats_again_has_returned() -> None:
    fleet = Fleet()
    fleet.watch(5, "w")
    fleet.watch(0.3)  # it had to connect again
    fleet.watch(5, alive="w")
    assert (fleet.silent, fleet.returned) == (["w"], ["w"])


def test_a_silent_worker_that_ends_has_not_returned() -> None:
    fleet = Fleet()
    fleet.watch(5, "w")
    fleet.watch(20)
    fleet.watch(5, alive="w")  # started again under the same id
    assert (fleet.silent, fleet.returned) == (["w"], [])


def test_a_worker_stopped_in_a_beat_is_silent_once() -> None:
    """It has two channels. Its jobs, taken once, may be its own again when the second has stayed
    for as long as the first: a second time they would be suspects."""
    fleet = Fleet()
    fleet.watch(BEAT_S, "w")
    for _ in range(100):
        fleet.at += LOOK_S
        fleet.look(("w", 0), ("w", 1))
    assert (fleet.silent, fleet.returned) == (["w"], [])
    fleet.watch(5, alive="w")
    assert (fleet.silent, fleet.returned) == (["w"], ["w"])


def test_a_channel_that_a_half_open_connection_keeps_makes_no_worker_silent() -> None:
    fleet = Fleet()
    fleet.watch(1, "w")
    fleet.watch(30, "w", alive="w")
    assert (fleet.silent, fleet.returned) == ([], [])


def test_an_id_may_contain_what_separates_it_from_the_number() -> None:
    assert keys.worker_of_heartbeat(keys.heartbeat_channel("a:b:1", 12)) == "a:b:1"
