"""Pub/sub channels: a subscription that reconnects, and who is subscribed.

Token path: Redis pub/sub -> connection.py -> here -> gateway/core/relay.py. Workers receive their
control messages the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable

from shared.platform.backoff import Backoff
from shared.store import keys
from shared.store.connection import Connection
from shared.store.errors import StoreError, StoreTimeout
from shared.store.servers import Servers

log = logging.getLogger("flotilla.subscription")

_RECONNECT_BASE_S = 0.02
_RECONNECT_CAP_S = 0.2
_PING_S = 1.0
_SILENCE_S = 3.0
"""Longest wait for the reply to a ping: a connection that is half open never answers."""


def channel_command(name: str) -> str:
    """SUBSCRIBE, PUBLISH or NUMSUB of this fleet's Redis: on a cluster channels lie in slots."""
    if not keys.sharded():
        return name
    return "SHARDNUMSUB" if name == "NUMSUB" else f"S{name}"


class Subscription:
    """Start `run` as a task. What is published while it is not connected is lost."""

    def __init__(
        self,
        servers: Servers,
        shard: int,
        channel: str,
        on_message: Callable[[bytes], None],
        on_connected: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        on_silent: Callable[[], None] = lambda: None,
    ) -> None:
        """For this shard and those that share its client. `channel`: by the name that it has on one
        Redis. `on_connected` is called after each connect: messages may have been lost before it.

        `on_lost` is called when the connection is lost, before there is another one; `on_silent`
        before that if it is given up because nothing arrives on it any more.
        """
        self.connected = asyncio.Event()
        """Set while messages are received."""
        self._server = servers.of(shard).server
        self._connection = Connection(self._server, _SILENCE_S, on_message)
        self._name = keys.channel_at(shard, channel)
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_silent = on_silent

    @property
    def is_served(self) -> bool:
        """Whether messages are received and, on a cluster, calls to the slot are carried out."""
        return self.connected.is_set() and bool(self._server.is_served)

    async def run(self) -> None:
        """Receive for ever; ends by cancellation."""
        backoff = Backoff(_RECONNECT_BASE_S, _RECONNECT_CAP_S)
        try:
            while True:
                try:
                    await self._connection.call(channel_command("SUBSCRIBE"), self._name)
                    backoff.reset()
                    self.connected.set()
                    self._on_connected()
                    while True:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_PING_S):
                                await self._connection.lost.wait()
                        await self._connection.send("PING")
                except StoreError as error:
                    if self.connected.is_set():
                        log.warning("subscription lost: %s", error)
                        if isinstance(error, StoreTimeout):
                            self._on_silent()
                        self._on_lost()
                    self.connected.clear()
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._connection.close()


async def listening(servers: Servers, workers: Collection[str]) -> set[str]:
    """Those of the workers that are subscribed to their control channels. Raises StoreError."""
    # A worker subscribes to its channel for each shard.
    channels = [keys.channel_at(0, keys.control_channel(worker)) for worker in workers]
    if not channels:
        return set()
    # A flat list: name, number of subscribers, ...
    reply = await servers.of(0).execute_command("PUBSUB", channel_command("NUMSUB"), *channels)
    return {worker for worker, n in zip(workers, reply[1::2], strict=True) if n}


async def send(servers: Servers, workers: Iterable[str], message: bytes) -> None:
    """Publish a message on the workers' control channels. Raises StoreError."""
    pipeline = servers.of(0).pipeline(transaction=False)
    for worker in workers:
        channel = keys.channel_at(0, keys.control_channel(worker))
        pipeline.execute_command(channel_command("PUBLISH"), channel, message)
    await pipeline.execute()
