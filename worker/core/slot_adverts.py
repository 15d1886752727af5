"""The free slots that a worker has advertised to Redis, for jobs that are still to come.

A job that finds an advertised slot needs no claim: the script that submits it leases it to the
worker and publishes it on the worker's control channel. Redis subtracts such jobs from the
advertised number at once, the worker when it receives them. So each update carries both the new
number and the one that, by the worker's count, is left of the last: the difference is on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from worker.core.home_shards import HomeShards
from worker.core.membership import Membership

# A slot becomes free with nearly every job's end. More free slots are advertised only once they
# exceed the advertised number by one in so many.
_TOLERANCE = 16


class AdvertisedSlots:
    """One worker's advertised slots, an equal share of its free slots for each of its `homes`.

    `free` returns how many slots are free now.
    """

    def __init__(self, member: Membership, free: Callable[[], int], homes: HomeShards) -> None:
        self._homes = homes
        shards = member.queue.shards
        self._free = free
        self._pool = member.pool
        self._advertiser = advertiser(member.worker_id, member.lease_s)
        self._advertised: list[int | None] = [None] * shards  # None: not known
        self._stale = [True] * shards
        self._settled = [asyncio.Event() for _ in range(shards)]  # no update is in flight
        for settled in self._settled:
            settled.set()
        self._stopped = self._paused = False

    async def wait_until_settled(self, shard: int) -> None:
        """Return when no update of the shard is in flight: updates must not overtake each other."""
        while not self._settled[shard].is_set():  # another update may have started since
            await self._settled[shard].wait()

    def start_update(self, shard: int) -> SlotUpdate:
        """The update to send now. Call `acked` or `rejected` with its outcome.

        No other update of the shard may be in flight (`wait_until_settled`).
        """
        advertised = self._advertised[shard]
        self._settled[shard].clear()
        share = self._share(shard)
        # Jobs that arrive while the update is in flight are subtracted from the new number.
        self._advertised[shard] = share
        left = UNKNOWN if advertised is None else advertised
        return SlotUpdate(self._pool, self._advertiser, share, left)

    def pending_update(self, shard: int) -> SlotUpdate | None:
        """As `start_update`, or None if Redis is up to date or an update is in flight."""
        if self._stopped or not self._settled[shard].is_set():
            return None
        advertised, free = self._advertised[shard], self._share(shard)
        current = (
            advertised is not None and advertised <= free <= advertised + advertised // _TOLERANCE
        )
        return None if current and not self._stale[shard] else self.start_update(shard)

    def _share(self, shard: int) -> int:
        homes = self._homes.shards
        return self._free() // len(homes) if shard in homes and not self._paused else 0

    def acked(self, shard: int, assigned: int | None = 0) -> None:
        """Redis applied the update and assigned `assigned` of its slots (None: unknown)."""
        self._settled[shard].set()
        self._stale[shard] = False
        before = self._advertised[shard]
        self._advertised[shard] = None if assigned is None or before is None else before - assigned

    def rejected(self, shard: int, update: SlotUpdate) -> None:
        """Redis refused the call that carried `update`: what was advertised before still holds."""
        advertised = self._advertised[shard]
        self.acked(shard, None)
        self._stale[shard] = True
        if advertised is not None and update.acknowledged != UNKNOWN:
            self._advertised[shard] = int(update.acknowledged) - (update.slots - advertised)

    def job_assigned(self, shard: int) -> None:
        """The worker has received a job that took an advertised slot."""
        advertised = self._advertised[shard]
        self._advertised[shard] = None if advertised is None else advertised - 1

    def mark_stale(self) -> None:
        """Send the next update of each shard even if nothing changed: Redis may have lost them."""
        self._stale = [True] * len(self._stale)

    def pause(self) -> None:
        """Advertise no slot until `reset`: messages were lost, so what is left is not known."""
        self._paused = True

    def reset(self) -> None:
        """Jobs that were on their way have arrived or are lost: what is left is unknown."""
        self._advertised, self._paused = [None] * len(self._advertised), False

    def stop(self) -> None:
        """Advertise nothing any more."""
        self._stopped = True
