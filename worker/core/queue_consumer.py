"""Claims queued jobs over one connection, then blocks for a wake-up when there are no more.

Where the pool has LoRA adapters, each claim asks first which of their queues have waiting jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

from shared.job.advertised_slots import SlotUpdate
from shared.job.job import LeasedJob
from shared.store.interface import StoreError
from shared.store.redis.claim_connection import ClaimConnection
from worker.core.adapter_claims import AdapterQueues
from worker.core.slot_adverts import AdvertisedSlots


class QueueConsumer:
    """One worker's claims on its queues' lanes, of the shards that share a connection.

    `on_suspects` is called when suspects of the pool wait. `overcommitted`: see `SlotAccounting`.
    """

    def __init__(
        self,
        connection: ClaimConnection,
        pool: str,
        advertised_slots: AdvertisedSlots,
        adapter_queues: AdapterQueues,
        on_suspects: Callable[[], None],
        overcommitted: Callable[[], int],
    ) -> None:
        self.held_back = False
        """The last claim left jobs waiting that this worker may not take yet."""
        self._left_until: float | None = None
        """When jobs may be taken that the last claim left to other workers, on the event loop's
        clock; None: there are none."""
        self.shards = connection.shards
        self._connection = connection
        self._pool = pool
        self._advertised_slots = advertised_slots
        self._adapter_queues = adapter_queues
        self._on_suspects = on_suspects
        self._overcommitted = overcommitted
        self._waits_since = dict.fromkeys(connection.shards, 0.0)
        """Since when a shard's oldest job waits, on the event loop's clock, by those taken there
        last; for `PlacementRules.overtake_s` at most, so that each shard has its turn."""
        self._looks = deque(connection.shards)
        self._blocking_pop: asyncio.Future[list[bytes] | None] | None = None

    @property
    def parts(self) -> int:
        """How many claims the free slots are divided among.

        Where several tenants wait, one for each shard: if one claim filled all slots from one
        shard, whoever is next in the others would wait until these have their turn.
        """
        return len(self.shards) if self._connection.tenants_share else 1

    def next_look(self, first: int | None = None) -> int | None:
        """A shard to look for a reason to hand a job back: `first`, else another at each call.

        None: there are adapter queues, which have turns of their own, or the claim after it would
        have to wait for the end of a blocking pop.
        """
        if self._adapter_queues.names or self._blocking_pop is not None:
            return None
        if first is not None:
            return first
        self._looks.rotate(-1)
        return self._looks[0]

    async def claim(
        self, count: int, *, left_over: int = 0, first: int | None = None
    ) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first. Raises StoreError.

        `first`: the shard to begin with, whose jobs are not left to other workers; without, the one
        whose oldest job waits longest. `left_over`: slots that stay free even if `count` jobs come.
        With some, the blocking pop follows the claim at once, whatever it returns.
        """
        blocking_pop, self._blocking_pop = self._blocking_pop, None
        popped = None
        if blocking_pop is not None:
            with contextlib.suppress(StoreError):  # of a connection that is closed
                popped = await blocking_pop
        await self._connection.open()
        since = self._waits_since
        shards = sorted(since, key=lambda shard: (shard != first, since[shard]))
        self.held_back, self._left_until = False, None
        if self._adapter_queues.names:
            return await self._claim_in_turns(shards, count, popped)
        jobs: list[LeasedJob] = []
        for shard in shards:
            missing = count - len(jobs)
            pop = left_over > 0 and shard == shards[-1]
            try:
                at_once = shard == first
                jobs += await self._acquire(shard, self._pool, missing, pop=pop, at_once=at_once)
            except StoreError:
                if not jobs:
                    raise
                return jobs  # already leased: dropping them would delay them by a lease
            if len(jobs) == count:
                return jobs
        if self._blocking_pop is None:
            self._start_blocking_pop()
        return jobs

    async def _claim_in_turns(
        self, shards: Sequence[int], count: int, popped: Sequence[bytes] | None
    ) -> list[LeasedJob]:
        """As `claim`, from the pool's own queue and from those of its adapters.

        `popped`: what the last blocking pop has returned.
        """
        queues, found = self._adapter_queues, dict[str, list[LeasedJob]]()
        order, places, self.held_back = await queues.next_turns(shards)
        if self.held_back and popped is not None:
            # Another worker may take the jobs that this one may not take yet.
            await self._connection.push_back(popped)
        missing, failed = count, False
        try:
            for name in order:
                is_new = name != self._pool and not queues.is_running(name)
                if is_new and not places:
                    continue
                for shard in shards if missing else ():
                    jobs = await self._acquire(shard, name, missing) if missing else []
                    found.setdefault(name, []).extend(jobs)
                    missing -= len(jobs)
                places -= is_new and bool(found.get(name))
        except StoreError:
            if missing == count:
                raise
            failed = True  # return what is leased already
        for name, jobs in found.items():
            if jobs:
                queues.claimed(name, jobs)
        if missing and not failed and not self.held_back:
            self._start_blocking_pop()
        return [job for jobs in found.values() for job in jobs]

    async def _acquire(
        self, shard: int, name: str, count: int, *, pop: bool = False, at_once: bool = False
    ) -> list[LeasedJob]:
        """Lease at most `count` jobs of one queue; `pop`: then start the blocking pop; `at_once`:
        none is left to a warm worker."""
        self._waits_since[shard] = began = asyncio.get_running_loop().time()
        if name != self._pool:
            update = SlotUpdate(name, "", 0, 0)
            return (await self._connection.acquire(shard, count, update)).jobs
        await self._advertised_slots.wait_until_settled(shard)
        # Without a slot the script leases nothing, and leaves a wake-up for another worker.
        count -= self._overcommitted()
        update, left = self._advertised_slots.start_update(shard), None
        try:
            sent = self._connection.acquire(shard, count, update, at_once=at_once)
            if pop:
                self._start_blocking_pop()
            left, leased, suspects, left_s = await sent
            longest_s = self._connection.queue.placement.overtake_s
            # Where tenants take turns, others may wait longer than the job that was taken.
            waits = (longest_s if job.share.charged else job.waited_s for job in leased)
            self._waits_since[shard] = began - min(max(waits, default=0.0), longest_s)
            if suspects:
                self._on_suspects()
            if left_s:
                until = asyncio.get_running_loop().time() + left_s
                self._left_until = min(until, self._left_until or until)
            return leased
        finally:
            self._advertised_slots.acked(shard, None if left is None else update.slots - left)

    def _start_blocking_pop(self) -> None:
        names = (self._pool, *self._adapter_queues.names)
        self._blocking_pop = self._connection.pop_wake_up(names)

    async def wait_for_wake_up(self) -> None:
        """Return when a job may have been queued since `claim`, or one that it left to another
        worker may be taken, or after `BLOCK_S`. Raises StoreError."""
        blocking_pop, until = self._blocking_pop, self._left_until
        if blocking_pop is None:
            return
        if until is not None:
            wait_s = max(0.0, until - asyncio.get_running_loop().time())
            if not (await asyncio.wait({blocking_pop}, timeout=wait_s))[0]:
                await self._connection.wake(self._pool)
        await blocking_pop

    async def forward_wake_up(self) -> None:
        """Push a received wake-up back, for another worker: this one has no free slot for it."""
        if self._blocking_pop is not None and self._blocking_pop.done():
            blocking_pop, self._blocking_pop = self._blocking_pop, None
            popped = await blocking_pop
            if popped is not None:
                await self._connection.push_back(popped)

    async def wake(self) -> None:
        """End this worker's own blocking pop: it has other queues now. Raises StoreError."""
        await self._connection.wake()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()
