"""What this worker offers to jobs to come: its free slots, as far as Redis knows of them.

A job for which a slot is on offer needs no claim: it is leased in the step that submits it, and its
worker is told. Redis counts such jobs down; what comes free is told with the next output.
"""

from __future__ import annotations

from collections.abc import Callable

from shared import keys
from shared.queue import Offer


class Offers:
    """One worker's offers, a share of its free slots for each shard."""

    def __init__(
        self, free: Callable[[], int], *, pool: str, worker: str, lease_s: float, shards: int
    ) -> None:
        self._free = free
        self._pool = pool
        self._offerer = keys.offerer(worker, lease_s)
        self._told: list[int | None] = [None] * shards

    def share(self) -> int:
        """What a shard may give away now."""
        return self._free() // len(self._told)

    def news(self, shard: int) -> Offer | None:
        """What the shard is to be told, None if it knows."""
        share = self.share()
        if share == self._told[shard]:
            return None
        self._told[shard] = share
        return Offer(self._pool, self._offerer, share)

    def took(self, shard: int) -> None:
        """The shard has given one away."""
        told = self._told[shard]
        self._told[shard] = None if told is None else told - 1

    def forget(self) -> None:
        """Tell all anew: who knows what Redis has lost meanwhile."""
        self._told = [None] * len(self._told)
