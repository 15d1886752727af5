"""The range of a told wait, from what the last ones turned out to be."""

from __future__ import annotations

import random

import pytest

from shared.fleet import told_waits
from shared.fleet.told_waits import ToldWaits


def test_without_enough_waits_there_is_no_range() -> None:
    waits = ToldWaits()
    for _ in range(19):
        waits.ended("p", "a", 10.0, 12.0, 0.0)
    assert waits.range_s("p", "a", 10.0) is None
    waits.ended("p", "a", 10.0, 12.0, 0.0)
    assert waits.range_s("p", "a", 5.0) == (pytest.approx(6.0), pytest.approx(6.0))
    assert waits.range_s("other", "a", 5.0) is None


def test_a_tenant_with_few_waits_gets_the_range_of_its_pool() -> None:
    waits = ToldWaits()
    for n in range(20):
        waits.ended("p", "a", 10.0, 10.0, 0.0)
        waits.ended("p", "b", 10.0, 20.0 if n < 19 else 10.0, 0.0)
    assert waits.range_s("p", "a", 4.0) == (4.0, 4.0)
    assert waits.range_s("p", "b", 4.0) == (8.0, 8.0)
    assert waits.range_s("p", "c", 4.0) == (4.0, 8.0), "those of both"
    assert waits.ratio("other", 0.0) is None
    assert [waits.ratio("p", at_s) for at_s in (0.0, 1799.0, 1800.0)] == [1.0, 1.0, None]


@pytest.mark.parametrize("seed", range(5))
def test_nine_of_ten_waits_are_within_it_while_nothing_changes(seed: int) -> None:
    rng = random.Random(seed)
    waits, within, told = ToldWaits(), 0, 0
    for n in range(3000):
        real = 10.0 * rng.lognormvariate(0.0, 0.6)
        found = waits.range_s("p", "a", 10.0)
        if found is not None and n >= 100:
            told += 1
            within += found[0] <= real <= found[1]
        waits.ended("p", "a", 10.0, real, 0.0, found)
    assert 0.85 <= within / told <= 0.95


@pytest.mark.parametrize("seed", range(5))
def test_ranges_become_wider_while_waits_drift(seed: int) -> None:
    rng = random.Random(seed)
    waits, within, told = ToldWaits(), {True: 0, False: 0}, 0
    plain = ToldWaits()  # is not told which ranges held
    for n in range(1000):
        real = 10.0 * 1.003**n * rng.lognormvariate(0.0, 0.1)
        for which, adapts in ((waits, True), (plain, False)):
            found = which.range_s("p", "a", 10.0)
            if found is not None:
                told += adapts
                within[adapts] += found[0] <= real <= found[1]
            which.ended("p", "a", 10.0, real, 0.0, found if adapts else None)
    assert 0.8 <= within[True] / told <= 0.9
    assert within[False] / told < 0.75


def test_a_range_is_never_without_bounds() -> None:
    waits = ToldWaits()
    for _ in range(1000):
        waits.ended("p", "a", 10.0, 10.0, 0.0, (1.0, 2.0))
    low, high = waits.range_s("p", "a", 10.0) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(10 / 7.39, rel=0.01), pytest.approx(73.9, rel=0.01))


def test_the_last_waits_count_and_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_waits, "_MOST_TENANTS", 3)
    waits = ToldWaits()
    for tenant in ("a", "b", "c", "d"):
        for real in [50.0] * 100 + [30.0] * 100:
            waits.ended("p", tenant, 10.0, real, 0.0)
    assert waits.range_s("p", "d", 1.0) == (3.0, 3.0), "the 100 before have been forgotten"
    assert len(waits._waits) == 3
