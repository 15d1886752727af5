"""A worker's home shards: where it advertises its free slots, and claims first.

A submit leases its job to an advertised slot of its shard. So a worker's jobs are of its homes, as
long as these have any, and its output goes to their servers. It waits for jobs of all shards: those
of a lost worker, or of a shard whose workers are full, are claimed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection

from shared.job.home_shards import balanced
from shared.store.interface import StoreError
from shared.store.redis.stored_homes import StoredHomes
from worker.core.membership import Membership

log = logging.getLogger("flotilla.worker")

_INTERVAL_S = 1.0
_WORKERS_AT_FULL_RATE = 100
"""More read less often each: the reply grows with their number, too."""


class HomeShards:
    """The home shards of one worker: all on one Redis, where one claim is about all shards."""

    def __init__(self, member: Membership) -> None:
        queue = member.queue
        self.shards: Collection[int] = frozenset(range(queue.shards))
        self._n_shards = queue.shards
        self._worker_id = member.worker_id
        self._stopped = asyncio.Event()
        self._stored: StoredHomes | None = None
        if len(queue.servers.groups) > 1:
            self._stored = StoredHomes(queue.servers.primary, member.pool)

    async def run(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Follow the other workers that come and go, until `stop`; then they take these over.

        `on_change` may raise StoreError.
        """
        stored = self._stored
        while stored is not None and not self._stopped.is_set():
            n_workers = 0
            try:
                before = self.shards
                n_workers = await self._refresh(stored)
                if self.shards != before:
                    await on_change()
            except StoreError as error:
                log.debug("the home shards stay as they are: %s", error)
            interval_s = _INTERVAL_S * max(1.0, n_workers / _WORKERS_AT_FULL_RATE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.7, 1.0) * interval_s):
                    await self._stopped.wait()
        if stored is not None:
            with contextlib.suppress(StoreError):
                await stored.remove(self._worker_id)

    def stop(self) -> None:
        """The worker claims nothing more."""
        self._stopped.set()

    async def _refresh(self, stored: StoredHomes) -> int:
        before = await stored.read(self._worker_id)
        own = balanced(before, self._n_shards)[self._worker_id]
        if own != tuple(before[self._worker_id]):
            log.info("home shards: %s", ", ".join(map(str, own)))
            await stored.write(self._worker_id, own)
        self.shards = frozenset(own)
        return len(before)
