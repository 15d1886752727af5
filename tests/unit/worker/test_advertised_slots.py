"""Advertised slots: which updates are sent, and what is left after assignments."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.job.advertised_slots import UNKNOWN
from worker.core import control_channel
from worker.core.control_channel import ControlChannel
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


def test_stale_numbers_are_sent_again() -> None:
    worker = Worker()
    worker.send_update()
    worker.slots.mark_stale()
    assert [worker.send_update(), worker.send_update()] == [(8, 8), None]


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


async def test_a_claim_waits_for_the_update_in_flight() -> None:
    worker = Worker()
    assert worker.slots.pending_update(0) is not None
    waiting = asyncio.ensure_future(worker.slots.wait_until_settled(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    worker.slots.acked(0)
    await waiting


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


def test_a_rejected_update_is_sent_again() -> None:
    worker = Worker()
    worker.send_update()
    worker.slots.mark_stale()
    update = worker.slots.start_update(0)
    worker.slots.rejected(0, update)
    assert worker.send_update() == (8, 8)


def test_an_unknown_number_stays_unknown_after_a_rejection() -> None:
    worker = Worker()
    worker.slots.rejected(0, worker.slots.start_update(0))
    assert worker.send_update() == (8, UNKNOWN)
    worker.free = 7
    update = worker.slots.start_update(0)
    worker.slots.reset()
    worker.slots.rejected(0, update)
    assert worker.send_update() == (7, UNKNOWN)


def test_a_lost_assignment_does_not_take_a_slot_for_ever() -> None:
    worker = Worker()
    worker.send_update()  # Redis assigns one, and the message is lost
    worker.slots.reset()
    assert [worker.send_update(), worker.send_update()] == [(8, UNKNOWN), None]


def test_a_stopped_worker_advertises_nothing() -> None:
    worker = Worker()
    worker.slots.stop()
    assert worker.send_update() is None


def test_only_home_shards_are_advertised() -> None:
    worker = Worker(shards=4)
    worker.homes.shards = {1, 2}
    assert [worker.send_update(shard) for shard in range(4)] == [
        (0, UNKNOWN), (4, UNKNOWN), (4, UNKNOWN), (0, UNKNOWN)
    ]  # fmt: skip
    worker.homes.shards = {2}
    assert [worker.send_update(shard) for shard in range(4)] == [None, (0, 4), (8, 4), None]


class Queue:
    """Of a worker that has its slots, as of calls to Redis."""

    shards = 1

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.worker: Worker

    async def withdraw_slots(self, *of: Any) -> None:
        self.calls.append(f"withdraw, then {self.worker.send_update()}")

    async def reject_unreceived(self, *of: Any) -> dict[str, str]:
        self.calls.append("reject")
        return {}


async def test_what_is_left_is_unknown_after_a_lost_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that is on its way while it is unknown would not be subtracted."""
    monkeypatch.setattr(control_channel, "_DELIVERY_S", 0.0)
    worker, queue, nothing = Worker(), Queue(), cast(Any, None)
    queue.worker = worker
    runs: Any = SimpleNamespace(known_jobs=list)
    member = Membership(cast(Any, queue), "p", "w", 1.5)
    control = ControlChannel(member, worker.slots, runs, nothing, nothing, nothing)
    worker.send_update()
    for calls, update in (
        (["reject"], None),
        (["reject", "withdraw, then (0, 8)", "reject"], (8, UNKNOWN)),
    ):
        control.on_reconnect()
        assert control._rejecting is not None
        await control._rejecting
        assert queue.calls == calls
        assert worker.send_update() == update
