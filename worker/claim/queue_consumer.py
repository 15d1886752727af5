"""How a worker comes by a server's jobs: it claims what waits, and hears the wake-up list when more does.

Both go to Redis in one write, on a connection of their own, which may block: a claim that finds
less than it asked for is followed by the wait for the next job without another turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from redis.exceptions import RedisError

from shared.fleet.servers import shards_on
from shared.platform.pipelined_connection import PipelinedConnection
from shared.platform.redis_client import BLOCK_S, TIMEOUT_S, Redis
from shared.protocol import keys
from shared.protocol.job import LeasedJob
from shared.queue.job_queue import JobQueue
from worker.claim.advertised_slots import AdvertisedSlots


class QueueConsumer:
    """One worker's claims on the lanes of its pool, of those shards that lie on one server.

    `redis` is that server, the `place`-th, for blocking reads.
    """

    def __init__(
        self,
        queue: JobQueue,
        redis: Redis,
        place: int = 0,
        *,
        pool: str,
        worker: str,
        lease_s: float,
        offers: AdvertisedSlots,
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._worker = worker
        self._lease_s = lease_s
        self._offers = offers
        self._line = PipelinedConnection(redis, BLOCK_S + TIMEOUT_S)
        self._shards = deque(shards_on(place, len(queue.servers), queue.shards))
        self._bells = [keys.wake_ups(shard, pool) for shard in self._shards]
        self._ringing: asyncio.Future[Any] | None = None

    async def take(self, count: int, *, spare: int = 0) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first; raises redis' errors.

        `spare`: slots that are free even then; with some, it hears of the next job at once.
        """
        ringing, self._ringing = self._ringing, None
        if ringing is not None:
            with contextlib.suppress(RedisError, OSError):  # of a connection that is gone
                await ringing
        await self._queue.prepare(self._shards[0])
        await self._line.connect()
        shards = tuple(self._shards)
        self._shards.rotate(-1)  # no shard goes first for ever
        jobs: list[LeasedJob] = []
        for shard in shards:
            missing = count - len(jobs)
            await self._offers.quiet(shard)
            offer, left = self._offers.say(shard), None
            try:
                reply = self._queue.start_acquire(
                    self._line, shard, self._worker, missing, self._lease_s, offer
                )
                if spare > 0 and shard == shards[-1]:
                    self._listen()
                left, leased = await reply
                jobs += leased
            except (RedisError, OSError):
                if not jobs:
                    raise
                return jobs  # they are leased: whoever drops them loses them for a lease's time
            finally:
                self._offers.said(shard, None if left is None else offer.slots - left)
            if len(jobs) == count:
                return jobs
        if self._ringing is None:
            self._listen()
        return jobs

    def _listen(self) -> None:
        self._ringing = self._line.send("BLPOP", *self._bells, BLOCK_S)
        self._ringing.add_done_callback(_look_at_error)

    async def wake_ups(self) -> None:
        """Returns when something may have been queued since `take`, or after a while."""
        if self._ringing is not None:
            await self._ringing

    async def pass_on(self) -> None:
        """There is no slot for what the wake-up list rang for, if it did: somebody else may have one."""
        if self._ringing is not None and self._ringing.done():
            ringing, self._ringing = self._ringing, None
            if await ringing is not None:
                await self._queue.wake_worker(self._shards[0], self._pool)

    async def close(self) -> None:
        """Stop listening."""
        await self._line.close()


def _look_at_error(ringing: asyncio.Future[Any]) -> None:
    """Nobody may be waiting any more; asyncio would complain of an error that nobody saw."""
    if not ringing.cancelled():
        ringing.exception()
