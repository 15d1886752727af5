"""A subscription to one pub/sub channel that reconnects; each message goes to a callback.

Token path: Redis pub/sub -> pipelined_connection.py -> here -> gateway/core/relay.py. Workers
receive their control messages the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from shared.platform.backoff import Backoff
from shared.store.interface import StoreError, StoreTimeout, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.channels import channel_commands, with_subscribers
from shared.store.redis.cluster import SlotPool
from shared.store.redis.pipelined_connection import PipelinedConnection
from shared.store.redis.redis_client import TIMEOUT_S
from shared.store.redis.servers import Servers

log = logging.getLogger("flotilla.subscription")

_RECONNECT_BASE_S = 0.02
_RECONNECT_CAP_S = 0.2
_PING_S = 1.0
_SILENCE_S = 3.0
"""Longest wait for the reply to a ping: a connection that is half open never answers."""
_MISSED_LOOKS = 3
"""After so many looks in a row at which Redis has no subscriber of the channel, subscribe anew."""
_REPAIR_S = 5.0
"""Shortest time between two such repairs."""


class Subscription:
    """Start `run` as a task. What is published while it is not connected is lost."""

    def __init__(
        self,
        redis: Any,
        channel: str,
        on_message: Callable[[bytes], None],
        on_connected: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        on_silent: Callable[[], None] = lambda: None,
    ) -> None:
        """`redis`: a client, of whose kind the connection is. `on_connected` is called after each
        connect: messages may have been lost before it.

        `on_lost` is called when the connection is lost, before there is another one; `on_silent`
        before that if it is given up because nothing arrives on it any more.
        """
        self.connected = asyncio.Event()
        """Set while messages are received."""
        self._connection = PipelinedConnection(redis, TIMEOUT_S, on_message)
        self._pool: Any = redis.connection_pool
        self._name = channel
        self.channel = keys.plain_channel(channel)
        """By the name that it has on one Redis."""
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._was_seen = False
        self._missed = 0
        self._repair_after = 0.0  # on the monotonic clock

    @property
    def is_served(self) -> bool:
        """Whether messages are received and, on a cluster, calls to the slot are carried out."""
        served = not isinstance(self._pool, SlotPool) or self._pool.is_served
        return served and self.connected.is_set()

    async def run(self) -> None:
        """Receive for ever; ends by cancellation."""
        backoff = Backoff(_RECONNECT_BASE_S, _RECONNECT_CAP_S)
        try:
            while True:
                try:
                    await self._connection.call(channel_commands().subscribe, self._name)
                    backoff.reset()
                    self.connected.set()
                    self._on_connected()
                    await self._wait_until_lost()
                except StoreError as error:
                    if self.connected.is_set():
                        log.warning("subscription lost: %s", error)
                        if isinstance(error, StoreTimeout):
                            self._on_silent()
                        self._on_lost()
                    self.connected.clear()
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            await self._connection.close()

    async def _wait_until_lost(self) -> None:
        """Raises StoreError when the connection is lost; a PING finds one that went silent."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_S):
                    await self._connection.lost.wait()
            if self._connection.lost.is_set():
                raise StoreUnavailable("closed by Redis")
            await self._ping()

    async def _ping(self) -> None:
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._connection.call("PING")
        except TimeoutError:
            self._connection.give_up("silent")
            raise StoreTimeout(f"silent for {_SILENCE_S:g} s") from None

    def observe(self, *, subscribed: bool) -> None:
        """What Redis answers, over another connection, about subscribers of this channel.

        A subscription can have a connection that answers pings and gets no messages: to a server
        that was replaced. Only a channel that Redis has shown before can be missed.
        """
        if subscribed or not self._was_seen or not self.connected.is_set():
            self._was_seen |= subscribed
            self._missed = 0
            return
        self._missed += 1
        if self._missed >= _MISSED_LOOKS and time.monotonic() >= self._repair_after:
            self._missed, self._repair_after = 0, time.monotonic() + _REPAIR_S
            log.warning("Redis has no subscriber of %s: subscribing anew", self.channel)
            self._on_silent()
            self._connection.give_up("given up")

    async def catch_up(self) -> None:
        """Returns when all messages published before have been received. Raises StoreError."""
        if self.connected.is_set():
            await self._connection.call("PING")


def gateway_subscription(
    servers: Servers, shard: int, gateway_id: str, *callbacks: Callable[..., None]
) -> Subscription:
    """A gateway's subscription to its channel, for a shard and those that share its client: the
    frames of the jobs that the gateway watches."""
    channel = keys.channel_at(shard, keys.tokens_channel(gateway_id))
    return Subscription(servers.of(shard), channel, *callbacks)


def worker_subscription(
    servers: Servers, shard: int, worker_id: str, *callbacks: Callable[..., None]
) -> Subscription:
    """A worker's subscription to its control channel, for a shard and those that share its
    client."""
    channel = keys.channel_at(shard, keys.control_channel(worker_id))
    return Subscription(servers.of(shard), channel, *callbacks)


async def listening(servers: Servers, workers: Iterable[str], shard: int = 0) -> set[str]:
    """Those of the workers that are subscribed to their control channels. Raises StoreError."""
    channels = {keys.control_channel(worker): worker for worker in workers}
    found = await with_subscribers(servers.of(shard), shard, channels)
    return {channels[channel] for channel in found}


async def send(servers: Servers, workers: Iterable[str], message: bytes) -> None:
    """Publish a message on the workers' control channels. Raises StoreError."""
    # A worker subscribes to its channel for each shard.
    pipeline = servers.of(0).pipeline(transaction=False)
    for worker in workers:
        channel = keys.channel_at(0, keys.control_channel(worker))
        pipeline.execute_command(channel_commands().publish, channel, message)
    await pipeline.execute()
