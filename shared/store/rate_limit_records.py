"""Limits of keys and tenants in Redis: the rates, what is reserved of budgets, and who runs. They
lie in the first shard.

A request takes from all its limits in one call, or from none. Its tokens are settled by the ledger,
when its job has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from shared.job.record import pack
from shared.store import keys
from shared.store.queue import Queue
from shared.tenants.rate_limits import (
    Left,
    Limit,
    Limited,
    Taken,
    TooMuch,
    least,
    read_reserved,
)

SHARD = 0
LEASE_S = 30.0
"""A holder that is not renewed for so long does not count as a concurrent request."""
_KINDS = list(Limit)


class RateLimitRecords:
    """Takes and gives back. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def take(
        self, holder: str, tokens: int, limited: Sequence[Limited], now_s: float
    ) -> Taken | TooMuch:
        """Take a request and its tokens from all of these limits, or from none.

        `holder`: as in Taken. `now_s`: the time by Redis' clock, in Unix seconds.
        """
        limits = [(each.name, *each.limits) for each in limited]
        day, *periods = _periods(now_s)
        request = (holder, int(LEASE_S * 1000), tokens, day, *periods, limits)
        refused, *rates = await self._queue.run("take_limits", SHARD, pack(request))
        found = list(zip(limited, rates, strict=True))
        requests, rests = (  # of requests and tokens a minute, the first two of RateLimits
            least([Left(each.limits[n], rate[n]) for each, rate in found if each.limits[n]])
            for n in (0, 1)
        )
        if not refused:
            return Taken(holder, tokens, limited, requests, rests, day)
        name, number, wait_ms, left = refused
        (of,) = (each for each in limited if each.name == name.decode())
        return TooMuch(_KINDS[number], of, left, wait_ms, requests, rests)

    async def give_back(self, reserved: str, names: Iterable[str]) -> None:
        """The tokens that were taken for a request whose job was not queued."""
        await self._queue.run("give_back_tokens", SHARD, *read_reserved(reserved), *names)

    async def release(self, holders: Iterable[tuple[str, str]]) -> None:
        """The requests of these (name, holder) pairs have been answered."""
        pipeline = self._queue.servers.pipeline()
        for name, holder in holders:
            pipeline.of(SHARD).zrem(_running(name), holder)
        await pipeline.execute()

    async def renew(self, holders: Iterable[tuple[str, str]]) -> None:
        """The requests of these (name, holder) pairs run on."""
        until_us = int((await self._redis.time() + LEASE_S) * 1e6)
        pipeline = self._queue.servers.pipeline()
        for name, holder in holders:
            pipeline.of(SHARD).zadd(_running(name), {holder: until_us}, xx=True)
        await pipeline.execute()


def _running(name: str) -> str:
    return keys.first("running", name)


def _periods(now_s: float) -> tuple[str, str, int, int]:
    """The day and the month of a time, in UTC, and the milliseconds to the end of each."""
    now = datetime.fromtimestamp(now_s, UTC)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    next_month = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    ends = (day + timedelta(days=1), next_month)
    to_day_end, to_month_end = (int((end - now).total_seconds() * 1000) for end in ends)
    return day.strftime("%Y-%m-%d"), day.strftime("%Y-%m"), to_day_end, to_month_end
