"""Limits of keys and tenants in Redis: rates, concurrent requests, budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
import redis as sync_redis

from shared.store import keys
from shared.store.queue import Queue
from shared.store.rate_limit_records import RateLimitRecords
from shared.tenants.rate_limits import Limit, Limited, RateLimits, Taken, TooMuch

NOW_S = datetime(2026, 11, 28, 1, tzinfo=UTC).timestamp()


def of_key(*limits: int, name: str = "k:key_1") -> Limited:
    return Limited(name, RateLimits(*limits))


def rate(store: sync_redis.Redis, name: str = "k:key_1") -> tuple[Any, Any, float]:
    """What a bucket held: requests, tokens, and when."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(store.get(keys.first("rate", name)))
    requests, tokens, at_us = unpacker
    return requests, tokens, at_us


def go_back(store: sync_redis.Redis, seconds: float, name: str = "k:key_1") -> None:
    """As if so much time had passed since the last request."""
    requests, tokens, at_us = rate(store, name)
    packed = b"".join(map(msgpack.packb, (requests, tokens, at_us - seconds * 1e6)))
    store.set(keys.first("rate", name), packed)


@pytest.fixture
def records(queue: Queue) -> RateLimitRecords:
    return RateLimitRecords(queue)


async def taken(
    records: RateLimitRecords, *limited: Limited, tokens: int = 1, holder: str = ""
) -> Taken:
    found = await records.take(holder, tokens, limited, NOW_S)
    assert isinstance(found, Taken), found
    return found


async def refused(
    records: RateLimitRecords, *limited: Limited, tokens: int = 1, holder: str = ""
) -> TooMuch:
    found = await records.take(holder, tokens, limited, NOW_S)
    assert isinstance(found, TooMuch), found
    return found


async def test_a_rate_is_refilled_continuously(
    records: RateLimitRecords, store: sync_redis.Redis
) -> None:
    limited = of_key(6)
    lefts = [(await taken(records, limited)).requests_left for _ in range(6)]
    assert [each.left for each in lefts if each] == [5, 4, 3, 2, 1, 0]
    found = await refused(records, limited)
    assert (found.limit, found.left, found.of) == (Limit.REQUESTS, 0, limited)
    assert 9_000 < found.wait_ms <= 10_000
    assert "requests per minute of this API key: limit 6, left 0" in found.message(1)
    before = rate(store)
    assert (await refused(records, limited)).limit is Limit.REQUESTS
    assert rate(store) == before, "a refused request takes nothing"
    go_back(store, 10)
    await taken(records, limited)
    go_back(store, 600)
    found_left = (await taken(records, limited)).requests_left
    assert found_left
    assert found_left.left == 5, "never more than a minute's"


async def test_a_request_takes_from_all_limits_or_from_none(
    records: RateLimitRecords, store: sync_redis.Redis
) -> None:
    key, tenant = of_key(10, 1000), of_key(0, 100, name="t:team")
    await taken(records, key, tenant, tokens=60)
    found = await refused(records, key, tenant, tokens=60)
    assert (found.limit, found.of, found.left) == (Limit.TOKENS, tenant, 40)
    assert 11_000 < found.wait_ms <= 12_000
    assert "of the tenant 'team': limit 100, left 40, requested about 60" in found.message(60)
    assert rate(store)[0] == 9
    assert rate(store)[1] == 940
    # What is told is of the rate with the smallest part left.
    assert found.tokens_left
    assert found.tokens_left.limit == 100
    assert found.requests_left
    assert found.requests_left.limit == 10


async def test_a_request_that_is_larger_than_the_bucket_waits_until_it_is_full(
    records: RateLimitRecords, store: sync_redis.Redis
) -> None:
    limited = of_key(0, 100)
    found = await taken(records, limited, tokens=250)
    assert found.tokens_left
    assert found.tokens_left.left == -150
    assert (b"x-ratelimit-remaining-tokens", b"0") in found.headers()
    go_back(store, 90)
    assert (await refused(records, limited, tokens=1)).limit is Limit.TOKENS
    go_back(store, 2)
    await taken(records, limited, tokens=1)


@pytest.mark.parametrize(
    ("number", "period", "wait_h", "limit"),
    [(3, "2026-11-28", 23, Limit.DAY), (4, "2026-11", 71, Limit.MONTH)],
)
async def test_budgets_end_with_their_day_or_month(
    records: RateLimitRecords, store: sync_redis.Redis, number: int, period: str, wait_h: int,
    limit: Limit,
) -> None:  # fmt: skip
    numbers = [0, 0, 0, 0, 0]
    numbers[number] = 1000
    limited = of_key(*numbers, name="t:team")
    store.hset(keys.usage_totals(period), "t:team", 999)
    await taken(records, limited)
    store.hset(keys.usage_totals(period), "t:team", 1000)
    found = await refused(records, limited)
    assert (found.limit, found.left) == (limit, 0)
    assert found.wait_ms == wait_h * 3_600_000
    store.hset(keys.usage_totals(period), "t:team", "damaged")
    await taken(records, limited)
