"""Claims queued jobs from one server, then blocks for a wake-up when there are no more.

Both commands leave in one write, on a connection of their own, which may block: a claim that
returns less than it asked for is already followed by the blocking pop of the wake-up list.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from shared.platform.pipelined_connection import PipelinedConnection
from shared.platform.redis_client import BLOCK_S, Redis
from shared.platform.servers import shards_on
from shared.protocol import keys
from shared.protocol.job import LeasedJob
from shared.queue.job_queue import JobQueue
from worker.claim.advertised_slots import AdvertisedSlots

_SILENCE_S = 2.0
"""How much later than its time-out the reply to a blocking pop may come."""


class QueueConsumer:
    """One worker's claims on its pool's lanes, of those shards that lie on one server.

    `redis` is a client of that server for blocking reads, `server_index` its number in `queue`.
    `on_suspects` is called when suspects of the pool wait.
    """

    def __init__(
        self,
        queue: JobQueue,
        redis: Redis,
        server_index: int = 0,
        *,
        pool: str,
        worker: str,
        lease_s: float,
        advertised_slots: AdvertisedSlots,
        on_suspects: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._worker = worker
        self._lease_s = lease_s
        self._advertised_slots = advertised_slots
        self._on_suspects = on_suspects
        self._connection = PipelinedConnection(redis, BLOCK_S + _SILENCE_S)
        self._shards = deque(shards_on(server_index, len(queue.servers), queue.shards))
        self._wake_up_keys = [keys.wake_ups(shard, pool) for shard in self._shards]
        self._blocking_pop: asyncio.Future[Any] | None = None

    async def claim(self, count: int, *, left_over: int = 0) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first. Raises redis' errors.

        `left_over`: slots that stay free even if `count` jobs come. With some, the blocking pop
        follows the claim at once, whatever it returns.
        """
        blocking_pop, self._blocking_pop = self._blocking_pop, None
        if blocking_pop is not None:
            with contextlib.suppress(RedisError, OSError):  # of a connection that is closed
                await blocking_pop
        await self._queue.prepare(self._shards[0])
        await self._connection.connect()
        shards = tuple(self._shards)
        self._shards.rotate(-1)  # so that each shard comes first in turn
        jobs: list[LeasedJob] = []
        for shard in shards:
            missing = count - len(jobs)
            await self._advertised_slots.wait_until_settled(shard)
            update, left = self._advertised_slots.start_update(shard), None
            try:
                reply = self._queue.start_acquire(
                    self._connection, shard, self._worker, missing, self._lease_s, update
                )
                if left_over > 0 and shard == shards[-1]:
                    self._start_blocking_pop()
                left, leased, suspects = await reply
                jobs += leased
                if suspects:
                    self._on_suspects()
            except (RedisError, OSError):
                if not jobs:
                    raise
                return jobs  # already leased: dropping them would delay them by a lease
            finally:
                self._advertised_slots.acked(shard, None if left is None else update.slots - left)
            if len(jobs) == count:
                return jobs
        if self._blocking_pop is None:
            self._start_blocking_pop()
        return jobs

    def _start_blocking_pop(self) -> None:
        self._blocking_pop = self._connection.send("BLPOP", *self._wake_up_keys, BLOCK_S)
        self._blocking_pop.add_done_callback(_retrieve_error)

    async def wait_for_wake_up(self) -> None:
        """Return when a job may have been queued since `claim`, or after `BLOCK_S`."""
        if self._blocking_pop is not None:
            await self._blocking_pop

    async def forward_wake_up(self) -> None:
        """Push a received wake-up back, for another worker: this one has no free slot for it."""
        if self._blocking_pop is not None and self._blocking_pop.done():
            blocking_pop, self._blocking_pop = self._blocking_pop, None
            if await blocking_pop is not None:
                await self._queue.wake_worker(self._shards[0], self._pool)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def _retrieve_error(blocking_pop: asyncio.Future[Any]) -> None:
    """Mark the error as seen: no task may be awaiting the pop, and asyncio would log it."""
    if not blocking_pop.cancelled():
        blocking_pop.exception()
