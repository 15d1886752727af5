"""What a worker tells of its free slots, and when."""

from __future__ import annotations

import asyncio

from shared.protocol.advertised_slots import UNKNOWN
from worker.claim.advertised_slots import AdvertisedSlots


class Worker:
    def __init__(self, shards: int = 1) -> None:
        self.free = 8
        self.advertised_slots = AdvertisedSlots(
            lambda: self.free, pool="p", worker="w", lease_s=1.5, shards=shards
        )

    def tell(self, shard: int = 0) -> tuple[int, int | str] | None:
        """Slots, and what it took for left; None if there was nothing to tell."""
        news = self.advertised_slots.pending_update(shard)
        if news is None:
            return None
        assert (news.pool, news.advertiser) == ("p", "w 1500")
        self.advertised_slots.acked(shard)
        return news.slots, news.acknowledged


def test_what_redis_knows_is_not_told_again() -> None:
    worker = Worker()
    assert [worker.tell(), worker.tell()] == [(8, UNKNOWN), None]
    worker.free = 7
    assert [worker.tell(), worker.tell()] == [(7, 8), None]


def test_a_job_that_was_handed_over_is_counted_on_both_sides() -> None:
    worker = Worker()
    worker.tell()
    worker.advertised_slots.job_assigned(0)
    worker.free = 7
    assert worker.tell() is None
    worker.free = 8
    assert worker.tell() == (8, 7)


def test_a_few_slots_more_are_no_news_where_there_are_many() -> None:
    worker = Worker()
    worker.free = 64
    assert worker.tell() == (64, UNKNOWN)
    for _ in range(8):
        worker.advertised_slots.job_assigned(0)
    worker.free = 59
    assert worker.tell() is None
    worker.free = 60
    assert worker.tell() == (60, 56)
    worker.free = 59  # one that nobody may have
    assert worker.tell() == (59, 60)


def test_each_shard_has_its_share() -> None:
    worker = Worker(shards=3)
    assert [worker.tell(shard) for shard in range(3)] == [(2, UNKNOWN)] * 3
    worker.advertised_slots.job_assigned(1)
    assert [worker.tell(shard) for shard in range(3)] == [None, (2, 1), None]
    worker.free = 2
    assert [worker.tell(shard) for shard in range(3)] == [(0, 2)] * 3


def test_after_a_while_all_is_told_again() -> None:
    worker = Worker()
    worker.tell()
    worker.advertised_slots.mark_stale()
    assert [worker.tell(), worker.tell()] == [(8, 8), None]


def test_nothing_overtakes_a_word_that_is_on_its_way() -> None:
    worker = Worker()
    worker.tell()
    worker.free = 7
    claim = worker.advertised_slots.start_update(0)
    assert (claim.slots, claim.acknowledged) == (7, 8)
    worker.free = 5
    assert worker.tell() is None
    worker.advertised_slots.job_assigned(
        0
    )  # heard of meanwhile; may have been given before or after
    worker.advertised_slots.acked(0, 2)  # two of the seven were taken by jobs that waited
    assert worker.tell() == (5, 4)


async def test_a_claim_waits_for_what_was_said_before() -> None:
    worker = Worker()
    assert worker.advertised_slots.pending_update(0) is not None
    waiting = asyncio.ensure_future(worker.advertised_slots.wait_until_settled(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    worker.advertised_slots.acked(0)
    await waiting


def test_after_a_word_that_may_be_lost_nothing_is_known() -> None:
    worker = Worker()
    worker.tell()
    worker.advertised_slots.start_update(0)
    worker.advertised_slots.acked(0, None)
    worker.advertised_slots.job_assigned(0)
    assert worker.tell() == (8, UNKNOWN)


def test_a_refused_word_changes_nothing() -> None:
    worker = Worker()
    worker.tell()
    worker.free = 7
    offer = worker.advertised_slots.start_update(0)
    worker.advertised_slots.job_assigned(0)
    worker.free = 6
    worker.advertised_slots.rejected(0, offer)
    assert worker.tell() == (6, 7)  # of the eight one was given away, as far as is known
    assert worker.tell() is None


def test_a_refused_word_that_changes_nothing_is_said_again() -> None:
    worker = Worker()
    worker.tell()
    worker.advertised_slots.mark_stale()
    offer = worker.advertised_slots.start_update(0)
    worker.advertised_slots.rejected(0, offer)
    assert worker.tell() == (8, 8)


def test_who_knows_nothing_knows_no_more_after_a_refusal() -> None:
    worker = Worker()
    worker.advertised_slots.rejected(0, worker.advertised_slots.start_update(0))
    assert worker.tell() == (8, UNKNOWN)
    worker.free = 7
    offer = worker.advertised_slots.start_update(0)
    worker.advertised_slots.reset()
    worker.advertised_slots.rejected(0, offer)
    assert worker.tell() == (7, UNKNOWN)


def test_what_was_lost_on_its_way_takes_no_slot_for_good() -> None:
    worker = Worker()
    worker.tell()  # Redis gives one away, and the message is lost
    worker.advertised_slots.reset()
    assert [worker.tell(), worker.tell()] == [(8, UNKNOWN), None]


def test_who_ends_offers_nothing_more() -> None:
    worker = Worker()
    worker.advertised_slots.stop()
    assert worker.tell() is None
