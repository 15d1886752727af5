"""What a worker offers to jobs to come: its free slots, as far as Redis knows of them.

A job for which a slot is on offer needs no claim: it is leased in the step that submits it, and its
worker is told. Redis counts such jobs down at once, the worker when it hears of them; so both know
how many are on their way when the worker says what it has now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.protocol import keys
from shared.protocol.advertised_slots import UNKNOWN, SlotUpdate

# A slot that becomes free is no news as long as Redis knows of that many times as many: there is
# one with nearly every job's end.
_CLOSE_ENOUGH = 16


class AdvertisedSlots:
    """One worker's offers, a share of its free slots for each shard."""

    def __init__(
        self, free: Callable[[], int], *, pool: str, worker: str, lease_s: float, shards: int
    ) -> None:
        self._free = free
        self._pool = pool
        self._advertiser = keys.advertiser(worker, lease_s)
        self._told: list[int | None] = [None] * shards
        self._stale = [True] * shards
        self._quiet = [asyncio.Event() for _ in range(shards)]  # no word is on its way to Redis
        for quiet in self._quiet:
            quiet.set()
        self._ended = False

    async def quiet(self, shard: int) -> None:
        """Returns when Redis has heard the last word: the next one must not overtake it."""
        await self._quiet[shard].wait()

    def say(self, shard: int) -> SlotUpdate:
        """What there is now; `said` or `unsaid` must follow. Wait until it is `quiet` before."""
        told = self._told[shard]
        self._quiet[shard].clear()
        share = self._free() // len(self._told)
        # Jobs that are heard of while the word is on its way are counted down from this one.
        self._told[shard] = share
        return SlotUpdate(self._pool, self._advertiser, share, UNKNOWN if told is None else told)

    def said(self, shard: int, taken: int | None = 0) -> None:
        """Redis has heard it, and took so many off; None: who knows what it has heard."""
        self._quiet[shard].set()
        self._stale[shard] = False
        told = self._told[shard]
        self._told[shard] = None if taken is None or told is None else told - taken

    def unsaid(self, shard: int, offer: SlotUpdate) -> None:
        """Redis has refused to hear what `say` returned: it knows what it knew."""
        since = self._told[shard]
        self.said(shard, None)
        self._stale[shard] = True
        if since is not None and offer.acknowledged != UNKNOWN:
            self._told[shard] = int(offer.acknowledged) - (offer.slots - since)

    def news(self, shard: int) -> SlotUpdate | None:
        """What the shard is to be told, None if it knows; what is not None is said, as in `say`."""
        if self._ended or not self._quiet[shard].is_set():
            return None
        told, free = self._told[shard], self._free() // len(self._told)
        known = told is not None and told <= free <= told + told // _CLOSE_ENOUGH
        return None if known and not self._stale[shard] else self.say(shard)

    def took(self, shard: int) -> None:
        """The worker has heard of a job that was given to it."""
        told = self._told[shard]
        self._told[shard] = None if told is None else told - 1

    def repeat(self) -> None:
        """Tell all again: who knows what Redis has lost meanwhile."""
        self._stale = [True] * len(self._stale)

    def forget(self) -> None:
        """What was on its way is lost, or has come: nothing is any more."""
        self._told = [None] * len(self._told)

    def end(self) -> None:
        """Nothing is offered any more."""
        self._ended = True
