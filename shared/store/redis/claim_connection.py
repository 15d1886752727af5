"""A worker's connection to Redis for its claims, and for the blocking pop that follows them.

Both commands leave in one write, on a connection of their own, which may block: a claim that
returns less than it asked for is already followed by the blocking pop of the wake-up list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from shared.job.advertised_slots import SlotUpdate
from shared.job.fair_shares import EXPECTED_COST, NOTHING, Account
from shared.job.replies import Acquired
from shared.store.connection import Connection
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.acquire import pack_acquire, parse_acquired

BLOCK_S = 5.0
"""How long one blocking pop waits."""
_SILENCE_S = 2.0
"""How much later than its time-out the reply to a blocking pop may come."""


_NO_POOL = b"*"
"""In place of a pool's name, which it can't be."""


class ClaimCharges(Protocol):
    """What a claim charges."""

    @property
    def expected_cost(self) -> float:
        """For each job that it takes, where several tenants wait."""

    @property
    def tenants_share(self) -> bool:
        """Jobs of several tenants waited at the last claims."""

    def take_with_claim(self, shard: int) -> Mapping[Account, float]:
        """For what the worker's jobs have cost beyond that."""


class ClaimConnection:
    """One worker's connection for these shards, which share a client. Methods raise StoreError.

    `charges`: what claims report; without, a claim charges what jobs cost on average.
    """

    def __init__(
        self,
        queue: JobQueue,
        shards: range,
        worker: str,
        lease_s: float,
        charges: ClaimCharges | None = None,
    ) -> None:
        self.shards = shards
        self.queue = queue
        self._worker = worker
        self._lease_s = lease_s
        self._charges = charges
        server = queue.servers.of(shards[0]).server
        self._connection = Connection(server, BLOCK_S + _SILENCE_S)

    @property
    def tenants_share(self) -> bool:
        """Jobs of several tenants waited at the last claims."""
        return self._charges is not None and self._charges.tenants_share

    async def open(self) -> None:
        """Connect, and load the scripts, unless that is done."""
        await self.queue.scripts(self.shards[0]).ready()
        await self._connection.connect()

    def acquire(
        self, shard: int, count: int, slots: SlotUpdate, *, at_once: bool = False
    ) -> Coroutine[Any, Any, Acquired]:
        """`Store.acquire`: sent when this returns; await the reply. `open` it before. `at_once`: no
        job is left to a warm worker (PlacementRules.patience_s)."""
        scripts = self.queue.scripts(shard)
        cost, charges = EXPECTED_COST, NOTHING
        if self._charges is not None:
            cost, charges = self._charges.expected_cost, self._charges.take_with_claim(shard)
        rules, placement = self.queue.share_rules, self.queue.placement
        if at_once:
            placement = placement._replace(patience_s=0.0)
        arguments = pack_acquire(
            self._worker, count, self._lease_s, slots, rules, placement, cost, charges
        )
        return _acquired(scripts.start_on(self._connection, "acquire", shard, arguments))

    def pop_wake_up(self, pools: Iterable[str]) -> asyncio.Future[list[bytes] | None]:
        """Wait for a job of these queues, or for `wake`; None after `BLOCK_S`. Sent at once."""
        lists = [keys.wake_ups(shard, pool) for shard in self.shards for pool in pools]
        own = [keys.own_wake_ups(shard, self._worker) for shard in self.shards]
        return self._connection.send("BLPOP", *own, *lists, BLOCK_S)

    async def push_back(self, wake_up: Sequence[bytes]) -> None:
        """Wake another worker instead."""
        woken, pool = wake_up
        own = f"@{self._worker}".encode()
        if woken.endswith(own):  # its element names the pool; that of `wake` none
            woken = woken.removesuffix(own) + pool if pool != _NO_POOL else b""
        if woken:
            await self.queue.servers.of(self.shards[0]).rpush(woken, 1)

    async def wake(self, pool: str = "") -> None:
        """End this worker's own `pop_wake_up`. `pool`: whose jobs another worker is woken for if
        this one has no free slot then; empty: none."""
        own = keys.own_wake_ups(self.shards[0], self._worker)
        pipe = self.queue.servers.of(self.shards[0]).pipeline(transaction=False)
        pipe.rpush(own, pool or _NO_POOL)
        pipe.pexpire(own, int(BLOCK_S * 1000))
        await pipe.execute()

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def _acquired(reply: Coroutine[Any, Any, Any]) -> Acquired:
    return parse_acquired(await reply)
