"""Which shard a new job is put into."""

from __future__ import annotations

from collections import Counter

from gateway.core.job_factory import JobFactory
from tests.harness.settings import Settings

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


def shards_of(load: dict[int, int], *starts: str, tenant: str = "a") -> list[int]:
    served = {0, 1, 2, 3}
    factory = JobFactory(SETTINGS, SETTINGS.described, "gw", served.__contains__, load.__getitem__)
    return [factory._shard_of(tenant, start) for start in starts]


def test_the_calls_of_a_conversation_have_one_shard() -> None:
    idle = dict.fromkeys(range(4), 0)
    starts = [f"hello {n}" for n in range(400)]
    first, second = shards_of(idle, *starts), shards_of(idle, *starts)
    assert first == second != shards_of(idle, *starts, tenant="b")
    assert min(Counter(first).values()) > 50


def test_conversations_that_begin_alike_do_not_fill_one_shard() -> None:
    idle = dict.fromkeys(range(4), 0)
    (own,) = shards_of(idle, "hello")
    assert set(shards_of(idle | {own: 16}, *["hello"] * 100)) == {own}
    found = Counter(shards_of(idle | {own: 500}, *["hello"] * 400))
    assert found[own] < 60, "the other one is of two random ones that with less load"
    assert len(found) == 4


def test_any_shard_if_none_can_be_reached() -> None:
    assert set(chosen(set(), {})) == {0, 1, 2, 3}
