"""Home shards: where a worker claims as soon as it has room, and is told of jobs before others. It
asks the others each second, and is told of their jobs if none of their own workers has room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection

from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from worker.core.membership import Membership

log = logging.getLogger("flotilla.worker")

_INTERVAL_S = 1.0
_WORKERS_AT_FULL_RATE = 20
"""More read less often each: the reply grows with their number, too."""


def homes(worker: str, others: Collection[str], shards: int) -> frozenset[int]:
    """The home shards of one of a pool's serving workers, by its rank among them.

    With at least as many workers as shards each has one home, else each shard one worker; their
    numbers differ by one at most.
    """
    ranked = sorted({worker, *others})
    n = min(len(ranked), shards)
    return frozenset(range(ranked.index(worker) % n, shards, n))


class HomeShards:
    """The home shards of one worker: all on one Redis, where one claim is about all shards."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self.shards: Collection[int] = frozenset(range(member.queue.shards))
        self._stopped = asyncio.Event()

    async def run(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Follow the other workers that come and go, until `stop`. `on_change` may raise
        StoreError."""
        queue, pool, worker_id = self._member
        registry, others = Registry(queue.servers.primary), list[str]()
        while len(queue.servers.groups) > 1 and not self._stopped.is_set():
            with contextlib.suppress(StoreError):  # the homes stay as they are
                found = await registry.workers()
                others = [each.id for each in found if each.pool == pool and each.state.serving]
                own = homes(worker_id, others, queue.shards)
                if own != self.shards:
                    log.info("home shards: %s", ", ".join(map(str, sorted(own))))
                    self.shards = own
                    await on_change()
            interval_s = _INTERVAL_S * max(1.0, len(others) / _WORKERS_AT_FULL_RATE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.7, 1.0) * interval_s):
                    await self._stopped.wait()

    def stop(self) -> None:
        """The worker claims nothing more."""
        self._stopped.set()
