"""The ledger of use in each shard, and its sums, which lie in the first shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import msgpack

from shared.job.packing import pack
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.tenants.rate_limits import UsedTokens, key_name, tenant_name
from shared.tenants.usage import (
    MOST_ROWS,
    OTHER,
    Owner,
    UsageEntry,
    UsageRow,
    UsageSums,
    day_of,
    month_of,
    rows_of,
)

TOTALS_KEPT_S = 62 * 86_400
_SHARD = 0
_DAY_S = 86_400
_TENANTS_AT_ONCE = 20
_OTHERS = pack((OTHER, OTHER))


class LedgerBacklog(NamedTuple):
    """What is not in the sums yet, and what was done."""

    entries: int
    """Of all shards."""
    oldest_s: float
    """How long the oldest of them has been there; 0: there is none."""
    added: int
    """Entries that are in the sums, since there are any."""
    dropped: int
    """Entries that were dropped as there were too many."""


class UsageRecords:
    """The use of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(_SHARD)

    # --- the ledger ---

    async def positions(self) -> dict[int, str]:
        """Shard -> id of the last entry of its ledger that is in the sums."""
        found = await self._redis.hgetall(keys.first(keys.USAGE_POSITIONS))
        return {int(name): at.decode() for name, at in found.items() if name.isdigit()}

    async def entries(self, shard: int, after: str, limit: int) -> list[UsageEntry]:
        """The oldest entries of a shard's ledger behind `after`; those up to it are deleted."""
        ledger, redis = keys.usage(shard), self._queue.servers.of(shard)
        if after:
            await redis.xtrim(ledger, minid=_next_id(after), approximate=False)
        found = await redis.xrange(ledger, f"({after}" if after else "-", count=limit)
        return [_parse(entry.decode(), fields) for entry, fields in found]

    async def add(
        self, shard: int, after: str, entries: Sequence[UsageEntry], kept_days: int
    ) -> bool:
        """Add entries of a shard, the next behind `after`, to the sums, once.

        False if another process has added them, or some of them.
        """
        rows = rows_of(entries)
        packed = [
            (row.day, row.owner.tenant, pack(row.owner[1:]), _OTHERS, row.sums) for row in rows
        ]
        arguments = (
            shard, after, entries[-1].id, len(entries), kept_days * _DAY_S * 1000,
            TOTALS_KEPT_S * 1000, MOST_ROWS, pack(packed), pack(_totals(rows)),
            pack(_unused(entries)),
        )  # fmt: skip
        return bool(await self._queue.run("add_usage", _SHARD, arguments))

    async def backlog(self) -> LedgerBacklog:
        """For metrics and operators."""
        servers, shards = self._queue.servers, range(self._queue.shards)
        found = await self._redis.hgetall(keys.first(keys.USAGE_POSITIONS))
        pipeline = servers.pipeline()
        for shard in shards:
            at = found.get(str(shard).encode(), b"").decode()
            pipeline.of(shard).xlen(keys.usage(shard))
            # Those that are in the sums are deleted a moment later.
            pipeline.of(shard).xrange(keys.usage(shard), f"({at}" if at else "-", count=1)
            pipeline.of(shard).get(keys.usage_dropped(shard))
        replies = await pipeline.execute()
        (seconds, _), oldest = await self._redis.time(), replies[1::3]
        ages = (seconds - _seconds(entry) for each in oldest for entry, _ in each)
        return LedgerBacklog(
            sum(n for n, each in zip(replies[::3], oldest, strict=True) if each),
            max((0.0, *ages)),
            int(found.get(b"entries", 0)),
            sum(int(each or 0) for each in replies[2::3]),
        )

    # --- the sums ---

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
        for period in (day, month_of(day)):
            pipeline.hmget(keys.usage_totals(period), names)
        of_day, of_month = await pipeline.execute()
        return [
            UsedTokens(int(today or 0), int(this_month or 0))
            for today, this_month in zip(of_day, of_month, strict=True)
        ]

    async def _tenants(self, day: str) -> list[str]:
        found = await self._redis.smembers(keys.first(keys.USAGE_DAY, day))
        return sorted(each.decode(errors="replace") for each in found)

    async def _rows(self, day: str, tenants: Sequence[str]) -> list[UsageRow]:
        pipeline = self._redis.pipeline(transaction=False)
        for tenant in tenants:
            pipeline.hgetall(keys.first(keys.USAGE_ROWS, f"{day}:{tenant}"))
        replies: Iterable[Mapping[bytes, bytes]] = await pipeline.execute()
        rows = []
        for tenant, found in zip(tenants, replies, strict=True):
            for owner, sums in found.items():
                owned = Owner(tenant, *msgpack.unpackb(owner))
                rows.append(UsageRow(day, owned, UsageSums(*msgpack.unpackb(sums))))
        return rows


def _totals(rows: Sequence[UsageRow]) -> list[tuple[str, str, int]]:
    """What the rows add to the totals of their periods: period, field, tokens."""
    totals: Counter[tuple[str, str]] = Counter()
    for day, owner, sums in rows:
        tokens = sums.prompt_tokens + sums.output_tokens
        fields = [tenant_name(owner.tenant)]
        fields += [key_name(owner.key)] if owner.key else []
        totals.update(
            {(period, each): tokens for period in (day, month_of(day)) for each in fields}
        )
    return [(*place, tokens) for place, tokens in totals.items() if tokens]


def _unused(entries: Sequence[UsageEntry]) -> list[tuple[str, int]]:
    """What the jobs have not used of the tokens that were taken for them, by name of limits."""
    unused: Counter[str] = Counter()
    for entry in entries:
        if entry.reserved:
            owner, sums = entry.owner, entry.sums
            left = int(entry.reserved) - sums.prompt_tokens - sums.output_tokens
            unused[tenant_name(owner.tenant)] += left
            if owner.key:
                unused[key_name(owner.key)] += left
    return [*unused.items()]


def _next_id(entry: str) -> str:
    ms, _, number = entry.partition("-")
    return f"{ms}-{int(number) + 1}"


def _seconds(entry: bytes) -> float:
    return int(entry.partition(b"-")[0]) / 1000


def _parse(entry: str, fields: Mapping[bytes, bytes]) -> UsageEntry:
    """An entry of the ledger."""
    job, tenant, key, model, state, prompt, cached, output, *times, reserved = msgpack.unpackb(
        fields[b"u"]
    )
    queue_us, engine_us, wasted_us = map(int, times)
    known = prompt is not False
    return UsageEntry(
        entry,
        job,
        Owner(tenant, key, model),
        JobState(state),
        int(prompt) if known else None,
        int(cached) if known else None,
        int(output or 0) if known else None,
        queue_us,
        engine_us,
        wasted_us,
        str(reserved),
    )
