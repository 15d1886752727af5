"""Keeps a gateway's copy of the API keys in Redis up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from gateway.http.known_keys import KnownKeys
from shared.platform.malformed import MalformedValues
from shared.platform.tasks import run_together
from shared.store import keys
from shared.store.api_keys import KeyRecords
from shared.store.documents import SHARD
from shared.store.errors import StoreError
from shared.store.queue import Queue
from shared.store.subscription import Subscription

log = logging.getLogger("flotilla.keys")

_INTERVAL_S = 0.5


class KeyRefresh:
    """Looks twice a second whether keys have changed, and at once when told so. Start `run`."""

    def __init__(self, queue: Queue, known: KnownKeys, malformed: MalformedValues) -> None:
        self.records = KeyRecords(queue, malformed)
        self._known = known
        self._version: bytes | None = None
        self._refreshing = asyncio.Lock()
        self._told = asyncio.Event()
        self._subscription = Subscription(
            queue.servers,
            SHARD,
            keys.API_KEYS_CHANNEL,
            lambda _: self._told.set(),
            self._told.set,
        )
        self.loaded = asyncio.Event()
        """The keys were read once."""

    async def run(self) -> None:
        """Ends by cancellation."""
        await run_together(self._subscription.run(), self._look())

    async def _look(self) -> None:
        while True:
            self._told.clear()
            try:
                await self.refresh()
            except StoreError as error:
                log.debug("could not read the API keys: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self._told.wait()

    async def refresh(self) -> None:
        """Read what has changed. Raises StoreError."""
        async with self._refreshing:
            began = time.monotonic()
            if await self.records.keys.version() != self._version:
                found = await self.records.read()
                self._version = found.version
                self._known.replace(found.keys, found.tenant_limits)
            self._known.checked(began)
            self.loaded.set()
