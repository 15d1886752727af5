"""A subscription to one channel, kept up: messages go to a callback as they come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from shared.platform import redis_client as connections
from shared.platform.backoff import Backoff
from shared.platform.pipelined_connection import PipelinedConnection
from shared.platform.redis_client import RedisError

log = logging.getLogger("flotilla.subscription")

_RECONNECT_BASE_S = 0.02
_RECONNECT_CAP_S = 0.5


class Subscription:
    """Start `run` as a task. What is published while it is not connected is lost.

    `on_connected` is called each time that it stands again.
    """

    def __init__(
        self,
        redis_url: str,
        channel: str,
        on_message: Callable[[bytes], None],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.connected = asyncio.Event()
        self._redis = connections.connect(redis_url)
        self._line = PipelinedConnection(self._redis, connections.TIMEOUT_S, on_message)
        self._channel = channel
        self._on_connected = on_connected

    async def run(self) -> None:
        """Listen for ever; ends by cancellation."""
        backoff = Backoff(_RECONNECT_BASE_S, _RECONNECT_CAP_S)
        try:
            while True:
                try:
                    await self._line.call("SUBSCRIBE", self._channel)
                    backoff.reset()
                    self.connected.set()
                    self._on_connected()
                    await self._stay()
                except (RedisError, OSError) as error:
                    if self.connected.is_set():
                        log.warning("subscription lost: %s", error)
                    self.connected.clear()
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            await self._line.close()
            await self._redis.aclose()

    async def _stay(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(connections.BLOCK_S):
                    await self._line.lost.wait()
            if self._line.lost.is_set():
                raise connections.RedisConnectionError("closed by Redis")
            await self._line.call("PING")

    async def catch_up(self) -> None:
        """Returns when everything that was published before has come. Raises redis' errors."""
        if self.connected.is_set():
            await self._line.call("PING")
