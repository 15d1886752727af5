"""Homes are balanced, and stay where they are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.job.home_shards import balanced


def check(homes: dict[str, tuple[int, ...]], shards: int) -> None:
    """Every shard has a home, and their numbers differ by one at most."""
    at = [sum(shard in own for own in homes.values()) for shard in range(shards)]
    counts = at if len(homes) >= shards else [len(own) for own in homes.values()]
    assert max(counts) - min(counts) <= 1
    assert min(at) >= 1
    assert len(homes) >= shards or max(at) == 1
    assert all(own for own in homes.values())


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=40))
def test_workers_that_come_and_go(shards: int, changes: list[tuple[bool, int]]) -> None:
    homes = balanced({"w0": ()}, shards)
    for comes, number in changes:
        before = dict(homes)
        if comes:
            before.setdefault(f"w{number}", ())
        elif len(before) > 1:
            before.pop(f"w{number}", None)
        homes = balanced(before, shards)
        assert homes.keys() == before.keys()
        check(homes, shards)
        assert balanced(homes, shards) == homes
        if len(before) > shards:
            moved = [name for name, own in before.items() if own and own != homes[name]]
            assert len(moved) <= 1


def test_no_worker_has_no_homes() -> None:
    assert balanced({}, 3) == {}


def test_a_number_that_no_shard_has_is_no_home() -> None:
    assert balanced({"a": (7,), "b": (1,)}, 2) == {"a": (0,), "b": (1,)}


@pytest.mark.parametrize("shards", [3, 12])
@pytest.mark.parametrize("seed", range(20))
def test_workers_that_decide_for_themselves_agree(shards: int, seed: int) -> None:
    """Each writes its own homes, by what it has read a moment before."""
    choice = random.Random(seed)
    stored: dict[str, tuple[int, ...]] = {f"w{n}": () for n in range(choice.randint(1, 16))}
    for _ in range(4):  # rounds in which some come and some go
        stored |= {f"n{choice.randrange(99)}": () for _ in range(choice.randrange(4))}
        for gone in choice.sample(sorted(stored), min(len(stored) - 1, choice.randrange(3))):
            del stored[gone]
        for _ in range(12):
            views = {worker: dict(stored) for worker in stored}
            order = sorted(stored, key=lambda _: choice.random())
            for worker in order:
                if choice.random() < 0.5:
                    views[worker] = dict(stored)  # it reads later than others
                stored[worker] = balanced(views[worker], shards)[worker]
        check(stored, shards)
        assert balanced(stored, shards) == stored
