"""Limits of keys and tenants in Redis. api/test_limits.py has them over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest

from shared.store import keys
from shared.store.rate_limit_records import RateLimitRecords
from shared.tenants.rate_limits import Limit, Limited, RateLimits, Taken, TooMuch
from tests.store.conftest import Case

NOW_S = datetime(2026, 11, 28, 1, tzinfo=UTC).timestamp()


def of_key(*limits: int, name: str = "k:key_1") -> Limited:
    return Limited(name, RateLimits(*limits))


def rate(case: Case) -> tuple[Any, Any, float]:
    """What the bucket of the key held: requests, tokens, and when."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(case.server.get(keys.first("rate", "k:key_1")))
    requests, tokens, at_us = unpacker
    return requests, tokens, at_us


def go_back(case: Case, seconds: float) -> None:
    """As if so much time had passed since the last request."""
    requests, tokens, at_us = rate(case)
    packed = b"".join(map(msgpack.packb, (requests, tokens, at_us - seconds * 1e6)))
    case.server.set(keys.first("rate", "k:key_1"), packed)


async def taken(case: Case, *limited: Limited, tokens: int = 1) -> Taken:
    found = await RateLimitRecords(case.queue).take("", tokens, limited, NOW_S)
    assert isinstance(found, Taken), found
    return found


async def refused(case: Case, *limited: Limited, tokens: int = 1) -> TooMuch:
    found = await RateLimitRecords(case.queue).take("", tokens, limited, NOW_S)
    assert isinstance(found, TooMuch), found
    return found


async def test_a_rate_is_refilled_continuously(live: Case) -> None:
    limited = of_key(6)
    lefts = [(await taken(live, limited)).requests_left for _ in range(6)]
    assert [each.left for each in lefts if each] == [5, 4, 3, 2, 1, 0]
    found = await refused(live, limited)
    assert (found.limit, found.left, found.of) == (Limit.REQUESTS, 0, limited)
    assert 9_000 < found.wait_ms <= 10_000
    before = rate(live)
    await refused(live, limited)
    assert rate(live) == before, "a refused request takes nothing"
    go_back(live, 10)
    await taken(live, limited)
    go_back(live, 600)
    left = (await taken(live, limited)).requests_left
    assert left
    assert left.left == 5, "never more than a minute's"


async def test_a_request_takes_from_all_limits_or_from_none(live: Case) -> None:
    key, tenant = of_key(10, 1000), of_key(0, 100, name="t:team")
    await taken(live, key, tenant, tokens=60)
    found = await refused(live, key, tenant, tokens=60)
    assert (found.limit, found.of, found.left) == (Limit.TOKENS, tenant, 40)
    assert 11_000 < found.wait_ms <= 12_000
    assert rate(live)[:2] == (9, 940)
    # What is told is of the rate with the smallest part left.
    assert found.tokens_left
    assert found.requests_left
    assert (found.tokens_left.limit, found.requests_left.limit) == (100, 10)


@pytest.mark.parametrize(
    ("budget", "period", "wait_h", "limit"),
    [((1000, 0), "2026-11-28", 23, Limit.DAY), ((0, 1000), "2026-11", 71, Limit.MONTH)],
)
async def test_budgets_end_with_their_day_or_month(
    live: Case, budget: tuple[int, int], period: str, wait_h: int, limit: Limit
) -> None:
    limited = of_key(0, 0, 0, *budget, name="t:team")
    for used, is_left in ((999, True), (1000, False)):
        live.server.hset(keys.first("usage_totals", period), "t:team", used)
        if is_left:
            await taken(live, limited)
        else:
            found = await refused(live, limited)
            assert (found.limit, found.left) == (limit, 0)
            assert found.wait_ms == wait_h * 3_600_000
