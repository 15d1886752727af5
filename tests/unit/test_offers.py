"""What a worker tells of its free slots, and when."""

from __future__ import annotations

from shared.queue import Offer
from worker.offers import Offers


class Worker:
    def __init__(self, shards: int = 1) -> None:
        self.free = 8
        self.offers = Offers(lambda: self.free, pool="p", worker="w", lease_s=1.5, shards=shards)

    def told(self, shard: int = 0) -> int | None:
        news = self.offers.news(shard)
        assert news is None or (news.pool, news.offerer) == ("p", "w 1500")
        return None if news is None else news.slots


def test_what_redis_knows_is_not_told_again() -> None:
    worker = Worker()
    assert [worker.told(), worker.told()] == [8, None]
    worker.free = 7
    assert [worker.told(), worker.told()] == [7, None]


def test_a_job_that_was_handed_over_is_counted_on_both_sides() -> None:
    worker = Worker()
    worker.told()
    worker.offers.took(0)
    worker.free = 7
    assert worker.told() is None
    worker.free = 8
    assert worker.told() == 8


def test_each_shard_has_its_share() -> None:
    worker = Worker(shards=3)
    assert [worker.told(shard) for shard in range(3)] == [2, 2, 2]
    worker.offers.took(1)
    assert [worker.told(shard) for shard in range(3)] == [None, 2, None]
    worker.free = 2
    assert [worker.told(shard) for shard in range(3)] == [0, 0, 0]


def test_after_a_while_all_is_told_anew() -> None:
    worker = Worker()
    worker.told()
    worker.offers.forget()
    worker.offers.took(0)  # who has told nothing has nothing to count down
    assert worker.told() == 8


def test_nothing_is_told_as_nothing() -> None:
    worker = Worker()
    worker.free = 0
    assert worker.offers.news(0) == Offer("p", "w 1500", 0)
