"""Advertised slots: which updates are sent, and what is left after assignments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shared.job.advertised_slots import UNKNOWN
from worker.core.membership import Membership
from worker.core.slot_adverts import AdvertisedSlots


class Worker:
    def __init__(self, shards: int = 1) -> None:
        self.free = 8
        queue: Any = SimpleNamespace(shards=shards)
        self.homes: Any = SimpleNamespace(shards=range(shards))
        member = Membership(queue, "p", "w", 1.5)
        self.slots = AdvertisedSlots(member, lambda: self.free, self.homes)

    def send_update(self, shard: int = 0) -> tuple[int, int | str] | None:
        """Slots, and those believed to be left; None if there was no update to send."""
        update = self.slots.pending_update(shard)
        if update is None:
            return None
        assert (update.pool, update.advertiser) == ("p", "w 1500")
        self.slots.acked(shard)
        return update.slots, update.acknowledged


def test_an_unchanged_number_is_not_sent_again() -> None:
    worker = Worker()
    assert [worker.send_update(), worker.send_update()] == [(8, UNKNOWN), None]
    worker.free = 7
    assert [worker.send_update(), worker.send_update()] == [(7, 8), None]


def test_an_assigned_job_is_subtracted_on_both_sides() -> None:
    worker = Worker()
    worker.send_update()
    worker.slots.job_assigned(0)
    worker.free = 7
    assert worker.send_update() is None
    worker.free = 8
    assert worker.send_update() == (8, 7)


def test_where_many_are_advertised_a_few_more_are_not_sent() -> None:
    worker = Worker()
    worker.free = 64
    assert worker.send_update() == (64, UNKNOWN)
    for _ in range(8):
        worker.slots.job_assigned(0)
    worker.free = 59
    assert worker.send_update() is None
    worker.free = 60
    assert worker.send_update() == (60, 56)
    worker.free = 59  # one slot fewer is sent at once
    assert worker.send_update() == (59, 60)


def test_each_shard_has_its_share() -> None:
    worker = Worker(shards=3)
    assert [worker.send_update(shard) for shard in range(3)] == [(2, UNKNOWN)] * 3
    worker.slots.job_assigned(1)
    assert [worker.send_update(shard) for shard in range(3)] == [None, (2, 1), None]
    worker.free = 2
    assert [worker.send_update(shard) for shard in range(3)] == [(0, 2)] * 3


def test_no_update_is_sent_while_another_is_in_flight() -> None:
    worker = Worker()
    worker.send_update()
    worker.free = 7
    claim = worker.slots.start_update(0)
    assert (claim.slots, claim.acknowledged) == (7, 8)
    worker.free = 5
    assert worker.send_update() is None
    worker.slots.job_assigned(0)  # received meanwhile; may have been assigned before or after
    worker.slots.acked(0, 2)  # two of the seven were taken by jobs that waited
    assert worker.send_update() == (5, 4)


def test_after_an_update_that_may_be_lost_the_number_is_unknown() -> None:
    worker = Worker()
    worker.send_update()
    worker.slots.start_update(0)
    worker.slots.acked(0, None)
    worker.slots.job_assigned(0)
    assert worker.send_update() == (8, UNKNOWN)


def test_a_rejected_update_changes_nothing() -> None:
    worker = Worker()
    worker.send_update()
    worker.free = 7
    update = worker.slots.start_update(0)
    worker.slots.job_assigned(0)
    worker.free = 6
    worker.slots.rejected(0, update)
    assert worker.send_update() == (6, 7)  # one of the eight has been assigned
    assert worker.send_update() is None


def test_an_unknown_number_stays_unknown_after_a_rejection() -> None:
    worker = Worker()
    worker.slots.rejected(0, worker.slots.start_update(0))
    assert worker.send_update() == (8, UNKNOWN)
    worker.free = 7
    update = worker.slots.start_update(0)
    worker.slots.reset()
    worker.slots.rejected(0, update)
    assert worker.send_update() == (7, UNKNOWN)


def test_only_home_shards_are_advertised() -> None:
    worker = Worker(shards=4)
    worker.homes.shards = {1, 2}
    assert [worker.send_update(shard) for shard in range(4)] == [
        (0, UNKNOWN), (4, UNKNOWN), (4, UNKNOWN), (0, UNKNOWN)
    ]  # fmt: skip
    worker.homes.shards = {2}
    assert [worker.send_update(shard) for shard in range(4)] == [None, (0, 4), (8, 4), None]
