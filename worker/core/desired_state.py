"""Keeps a worker in the state that operators have asked for of its pool: adapters, paused or not.

The operator calls (operations.py) do the same at once; this corrects what a lost message or a
restart left undone, and prepares a worker before it is ready.
"""

from __future__ import annotations

import asyncio
import logging

from shared.fleet.registry import HEARTBEAT_S
from shared.platform.logs import RareWarning
from shared.store.errors import StoreError
from shared.store.operators import DesiredPools
from worker.core.adapters import Adapters
from worker.core.membership import Membership
from worker.core.operations import Operations

log = logging.getLogger("flotilla.worker")


class DesiredState:
    """One worker's part of what is desired of its pool."""

    def __init__(self, member: Membership, adapters: Adapters, operations: Operations) -> None:
        self._desired = DesiredPools(member.queue)
        self._pool = member.pool
        self._adapters = adapters
        self._operations = operations
        self._warn = RareWarning(log)

    async def run(self) -> None:
        """Follow the desired state until cancellation."""
        while True:
            await self.follow_if_possible()
            await asyncio.sleep(HEARTBEAT_S)

    async def follow_if_possible(self) -> None:
        """Do now what is desired; if Redis is unavailable, `run` tries again."""
        try:
            desired = await self._desired.read(self._pool)
            await self._operations.follow(paused=desired.paused)
            await self._adapters.follow(desired.adapters)
        except StoreError as error:
            self._warn("what is desired of the pool could not be read: %s", error)
