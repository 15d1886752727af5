"""Which shard a new job is put into."""

from __future__ import annotations

from collections import Counter

from gateway.core.job_factory import JobFactory
from tests.settings import Settings

SETTINGS = Settings(shards=4)


def chosen(served: set[int], load: dict[int, int]) -> Counter[int]:
    """How often each shard is chosen of 400 times."""
    factory = JobFactory(SETTINGS, SETTINGS.described, "gw", served.__contains__, load.__getitem__)
    return Counter(factory.new_shard() for _ in range(400))


def test_of_two_shards_the_one_with_less_load() -> None:
    found = chosen({0, 1, 2, 3}, {0: 9, 1: 0, 2: 9, 3: 9})
    assert found[1] == max(found.values())
    assert set(found) == {0, 1, 2, 3}, "both may be loaded"


def test_only_shards_that_can_be_reached() -> None:
    assert set(chosen({1, 2, 3}, {1: 5, 2: 5, 3: 5})) == {1, 2, 3}


def test_any_shard_if_none_can_be_reached() -> None:
    assert set(chosen(set(), {})) == {0, 1, 2, 3}
