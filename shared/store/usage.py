"""The sums of use, which lie in the first shard: of each UTC day, tenant, key and model.

Maintenance makes them of what has ended (ended.py). They have no text of requests or answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, Self

import msgpack

from shared.job.record import pack
from shared.store import keys
from shared.store.ended import Ended, EndedStreams, Owner, Reader
from shared.store.queue import Queue
from shared.tenants.rate_limits import UsedTokens, names_of, read_reserved

OTHER = "(other)"
"""In place of key and model, where a tenant has too many of them in a day."""
MOST_ROWS = 2000
"""Of a tenant in a day: what is more is added up under `OTHER`."""
_SHARD = 0
_DAY_S = 86_400
_TENANTS_AT_ONCE = 20


class UsageSums(NamedTuple):
    """What jobs have used together. Redis keeps it as an array in this order."""

    jobs: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_us: int = 0
    engine_us: int = 0
    wasted_us: int = 0
    uncounted: int = 0
    """Jobs whose log was gone before their tokens were counted."""

    @classmethod
    def of(cls, job: Ended) -> Self:
        """What a job adds to its row."""
        return cls(
            jobs=1,
            **{job.state: 1},
            prompt_tokens=job.prompt_tokens or 0,
            cached_tokens=job.cached_tokens or 0,
            output_tokens=job.output_tokens or 0,
            queue_us=job.queue_us,
            engine_us=job.engine_us,
            wasted_us=job.wasted_us,
            uncounted=int(job.prompt_tokens is None),
        )

    def plus(self, other: Iterable[int]) -> Self:
        """Both together."""
        return type(self)(*(a + b for a, b in zip(self, other, strict=True)))


class UsageRow(NamedTuple):
    """The use of one day."""

    day: str
    """`2026-11-28`, by Redis' clock."""
    owner: Owner
    sums: UsageSums


class UsageBacklog(NamedTuple):
    """What is not in the sums yet, and what was done."""

    entries: int
    """Of all shards."""
    oldest_s: float
    """How long the oldest of them has been there; 0: there is none."""
    added: int
    """Jobs that are in the sums, since there are any."""
    dropped: int
    """Entries that were dropped as there were too many."""


class UsageRecords:
    """The use of all tenants. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(_SHARD)

    async def add(self, shard: int, after: str, ended: Sequence[Ended], kept_days: int) -> bool:
        """Add what has ended in a shard, the entries next behind `after`, to the sums, once.

        False if another process has added them, or some of them.
        """
        jobs = [each for each in ended if not each.is_batch]
        sums: dict[tuple[str, Owner], UsageSums] = {}
        for job in jobs:
            place = day_of(job.at_ms / 1000), job.owner
            sums[place] = sums.get(place, UsageSums()).plus(UsageSums.of(job))
        other = pack((OTHER, OTHER))
        rows = [
            (day, owner.tenant, pack(owner[1:]), other, each) for (day, owner), each in sums.items()
        ]
        arguments = (
            Reader.USAGE.of(shard), after, ended[-1].entry, len(jobs), kept_days * _DAY_S * 1000,
            MOST_ROWS, pack(rows), pack(_totals(sums)), pack(_settled(jobs)),
        )  # fmt: skip
        return bool(await self._queue.run("add_usage", _SHARD, *arguments))

    async def backlog(self) -> UsageBacklog:
        """For metrics and operators."""
        unread = await EndedStreams(self._queue, Reader.USAGE).unread()
        pipeline = self._queue.servers.pipeline()
        for shard in range(self._queue.shards):
            pipeline.of(shard).get(keys.of("ended_dropped", shard))
        pipeline.of(_SHARD).hget(keys.first("ended_read"), "added")
        *dropped, added = (int(each or 0) for each in await pipeline.execute())
        return UsageBacklog(*unread, added, sum(dropped))

    async def rows(
        self, first: date, last: date, tenant: str = ""
    ) -> AsyncIterator[list[UsageRow]]:
        """The rows of these days, some at a time. `tenant`: only its own; empty: those of all."""
        for number in range((last - first).days + 1):
            day = (first + timedelta(days=number)).isoformat()
            tenants = [tenant] if tenant else await self._tenants(day)
            for at in range(0, len(tenants), _TENANTS_AT_ONCE):
                yield await self._rows(day, tenants[at : at + _TENANTS_AT_ONCE])

    async def used(self, names: Sequence[str], now_s: float) -> list[UsedTokens]:
        """What each has used of its budgets, by the names of limits (rate_limits.py).

        `now_s`: the time by Redis' clock, in Unix seconds.
        """
        if not names:
            return []
        day = day_of(now_s)
        pipeline = self._redis.pipeline(transaction=False)
        for period in (day, _month_of(day)):
            pipeline.hmget(keys.first("usage_totals", period), names)
        of_day, of_month = await pipeline.execute()
        return [
            UsedTokens(int(today or 0), int(this_month or 0))
            for today, this_month in zip(of_day, of_month, strict=True)
        ]

    async def _tenants(self, day: str) -> list[str]:
        found = await self._redis.smembers(keys.first("usage_day", day))
        return sorted(each.decode(errors="replace") for each in found)

    async def _rows(self, day: str, tenants: Sequence[str]) -> list[UsageRow]:
        pipeline = self._redis.pipeline(transaction=False)
        for tenant in tenants:
            pipeline.hgetall(keys.first("usage_rows", f"{day}:{tenant}"))
        replies: Iterable[Mapping[bytes, bytes]] = await pipeline.execute()
        return [
            UsageRow(
                day,
                Owner(tenant, *msgpack.unpackb(owner)),
                UsageSums(*msgpack.unpackb(sums)),
            )
            for tenant, found in zip(tenants, replies, strict=True)
            for owner, sums in found.items()
        ]


def _totals(rows: Mapping[tuple[str, Owner], UsageSums]) -> list[tuple[str, str, int]]:
    """What the rows add to the totals of their periods: period, field, tokens."""
    totals: Counter[tuple[str, str]] = Counter()
    for (day, owner), sums in rows.items():
        for period in (day, _month_of(day)):
            for name in names_of(*owner[:2]):
                totals[period, name] += sums.prompt_tokens + sums.output_tokens
    return [(*place, tokens) for place, tokens in totals.items() if tokens]


def _settled(jobs: Iterable[Ended]) -> list[tuple[str, int, int, str]]:
    """What was taken for the jobs: name of limits, tokens that were not used, all tokens, day."""
    unused: Counter[tuple[str, str]] = Counter()
    taken: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if job.reserved:
            tokens, day = read_reserved(job.reserved)
            for name in names_of(*job.owner[:2]):
                unused[name, day] += tokens - (job.prompt_tokens or 0) - (job.output_tokens or 0)
                taken[name, day] += tokens
    return [(name, left, taken[name, day], day) for (name, day), left in unused.items()]


def date_of(at_s: float) -> date:
    """The UTC day of a Unix time."""
    return datetime.fromtimestamp(at_s, UTC).date()


def day_of(at_s: float) -> str:
    """The same as text: `2026-11-28`."""
    return date_of(at_s).isoformat()


def _month_of(day: str) -> str:
    """The month of a day: `2026-11`."""
    return day[:7]
