"""Finds gateways whose process has ended: their clients are gone, or come back to other gateways.

The detector reports a gateway that it has seen (detector.py). One that no running process has seen,
as after all gateways have died, is found in the set of all gateways.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from shared.platform.metrics.losses import LostGatewayMetrics
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.channels import with_subscribers
from shared.store.redis.job_queue import JobQueue

log = logging.getLogger("flotilla.detector")

_INTERVAL_S = 2.0
_AT_ONCE = 200
"""Jobs in one call: Redis serves no other call meanwhile."""


class LostGateways:
    """Unwatches the jobs of gateways that are gone; registers its own gateway, if it is one."""

    def __init__(self, queue: JobQueue, metrics: LostGatewayMetrics, own_id: str = "") -> None:
        """`own_id`: of the gateway in this process, which has subscribed to its channel."""
        self._queue = queue
        self._metrics = metrics
        self._own_id = own_id
        self._missing: set[str] = set()  # at the last round

    async def abandon(self, shards: Iterable[int], gateway: str) -> None:
        """Unwatch all jobs of these shards for a gateway without a subscription there.

        Raises StoreError.

        Where it has subscribed again, nothing is done.
        """
        watched = 0
        for shard in shards:
            watched += await self._queue.abandon(shard, gateway, _AT_ONCE) or 0
        if watched:
            self._metrics.gateways.inc()
            log.warning("gateway %s is gone: %d of its jobs have lost a client", gateway, watched)

    async def run(self) -> None:
        """Register the own gateway, and look for gateways that are gone, for ever."""
        while True:
            try:
                await self.round()
            except StoreError as error:
                self._missing.clear()
                log.debug("could not look for lost gateways: %s", error)
            await asyncio.sleep(_INTERVAL_S)

    async def round(self) -> None:
        """Abandon the gateways that this round and the one before have missed everywhere."""
        primary = self._queue.servers.primary
        members = await primary.smembers(keys.GATEWAYS)
        known = {member.decode(errors="replace") for member in members}
        if self._own_id and self._own_id not in known:
            await primary.sadd(keys.GATEWAYS, self._own_id)
        missing = await self._without_subscription(known - {self._own_id})
        for gateway in missing & self._missing:
            await self.abandon(range(self._queue.shards), gateway)
            await primary.srem(keys.GATEWAYS, gateway)
        self._missing = missing - self._missing

    async def _without_subscription(self, gateways: Iterable[str]) -> set[str]:
        missing, servers = set(gateways), self._queue.servers
        for shards in servers.groups:
            if missing:
                channels = {keys.tokens_channel(name): name for name in missing}
                found = await with_subscribers(servers.of(shards[0]), shards[0], channels)
                missing -= {channels[channel] for channel in found}
        return missing
