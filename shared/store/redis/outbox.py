"""What has ended and is to be told to webhook endpoints, in Redis: a list for each shard."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.webhooks.webhook_delivery import Ended

LOCK_S = 8.0
"""A process that is killed keeps a shard's outbox for so long. No call of Redis takes as long: one
that goes on after it may deliver events that another process has delivered, too."""


class Outbox:
    """The outboxes of all shards, as one process reads them. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._process = secrets.token_hex(8)

    async def read(self, shard: int, limit: int, before: Sequence[Ended] = ()) -> Sequence[Ended]:
        """Delete the entries of a shard's outbox that were read before, and read those behind them;
        none while another process has the lock. With limit 0 the lock is given up."""
        first = before[0].entry if before else b""
        arguments = self._process, int(LOCK_S * 1000), limit, first, len(before)
        return list(map(parse_ended, await self._queue.run("read_outbox", shard, arguments)))


def outbox_key(shard: int) -> str:
    """Of the list."""
    return keys.base(shard) + keys.OUTBOX


def parse_ended(raw: bytes) -> Ended:
    """An entry of the list (outbox.lua)."""
    subject, state, at_us, notify, tenant = raw.decode().split("\n", 4)
    return Ended(raw, subject, state, int(at_us), notify, tenant)
