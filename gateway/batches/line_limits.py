"""The limits of keys that have made batches: lines take from them as they are submitted, and wait
where too little is left."""

from __future__ import annotations

import time
from collections.abc import Iterable

from shared.batches.batch import Batch
from shared.store.api_keys import KeyRecords
from shared.store.queue import Queue
from shared.store.rate_limit_records import RateLimitRecords
from shared.tenants.rate_limits import NO_LIMITS, Limited, TooMuch, limited_by, names_of

_READ_AGAIN_S = 1.0


class LineLimits:
    """Of one batch. Methods raise StoreError."""

    def __init__(self, queue: Queue, batch: Batch) -> None:
        self._keys = KeyRecords(queue)
        self._records = RateLimitRecords(queue)
        self._batch = batch
        self._limited: tuple[Limited, ...] = ()
        self._read_at = float("-inf")
        self._taken: dict[int, str] = {}  # for lines that are not queued yet, as Taken.reserved

    async def take(self, number: int, tokens: int, now_s: float) -> str | TooMuch:
        """Take a line from all limits, unless it was taken before; what its job has reserved then.

        `now_s`: the time by Redis' clock, in Unix seconds.
        """
        if number not in self._taken:
            limited = await self._limits()
            found = await self._records.take("", tokens, limited, now_s) if limited else None
            if isinstance(found, TooMuch):
                return found
            self._taken[number] = found.reserved if found else ""
        return self._taken[number]

    def queued(self, number: int) -> None:
        """The line has its job: the ledger settles what was taken for it."""
        self._taken.pop(number, None)

    async def give_back(self, numbers: Iterable[int]) -> None:
        """These lines do not run."""
        names = names_of(self._batch.tenant, self._batch.key)
        for number in numbers:
            if reserved := self._taken.pop(number, ""):
                await self._records.give_back(reserved, names)

    async def _limits(self) -> tuple[Limited, ...]:
        if time.monotonic() > self._read_at + _READ_AGAIN_S:
            tenant, key_id = self._batch.tenant, self._batch.key
            key = await self._keys.keys.get(key_id) if key_id else None
            of_tenant = await self._keys.limits.get(tenant)
            own = key.limits if key else NO_LIMITS
            self._limited = limited_by(key_id, own, tenant, of_tenant or NO_LIMITS)
            self._read_at = time.monotonic()
        return self._limited
