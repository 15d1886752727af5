"""The detector: notices within 200 ms that a worker has lost its connection to Redis, and within
2 s that one stands still with its connections open.

Every gateway and the maintenance process run one. It asks Redis about seven times a second for
the channels that have subscribers, over a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Set

from shared.platform import logs
from shared.platform.tasks import run_together
from shared.store.connection import Connection
from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.disconnects import CONFIRM_S, Disconnects
from shared.store.redis.heartbeats import Heartbeats
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.lost_workers import LostWorkers
from shared.store.subscription import channel_commands

log = logging.getLogger("flotilla.detector")

INTERVAL_S = 0.15
"""With `CONFIRM_S` the 200 ms. A look wakes two processes: most of what an idle gateway costs."""
_AT_FULL_RATE = 3
"""So many gateways ask at this interval. More ask less often each: together they miss a process
as soon, and the load on Redis does not grow with their number."""
_LONGEST_S = 1.0
_RETRY_S = 0.1
_REFUSED_S = 10.0
"""Until the next try if Redis refuses the command: its user may not call PUBSUB."""

OnLook = Callable[[range, Set[str]], None]
"""Called with these shards and all channels that have subscribers."""


class Detector:
    """Call `run` as a task; it ends by cancellation.

    A worker is silent when its heartbeat stays the same for `silence_s`.
    """

    def __init__(
        self,
        queue: JobQueue,
        lost_workers: LostWorkers,
        silence_s: float,
        on_look: OnLook = lambda _shards, _channels: None,
    ) -> None:
        self._queue = queue
        self._lost_workers = lost_workers
        self._silence_s = silence_s
        self._on_look = on_look
        self._warn_refused = logs.RareWarning(log)

    async def run(self) -> None:
        """Watch each server by itself: one that is away does not delay the others."""
        await run_together(*map(self._watch, self._queue.servers.groups))

    async def _watch(self, shards: range) -> None:
        redis = self._queue.servers.of(shards[0])
        connection, losses = Connection(redis.server), 0
        disconnects, is_new = Disconnects(), True
        heartbeats, delay_s = Heartbeats(self._silence_s), 0.0

        def connection_lost() -> None:
            disconnects.connection_lost()
            heartbeats.connection_lost()

        try:
            while True:
                if connection.losses > losses:
                    losses, is_new = connection.losses, True
                    connection_lost()
                try:
                    if is_new:
                        is_new = not await self._expect_registered(disconnects)
                    asked_at = time.monotonic()
                    channels, beats = await _channels(connection, shards[0])
                    answered_at = time.monotonic()
                    changes = heartbeats.look(beats, answered_at, delay_s)
                    delay_s = random.uniform(0.8, 1.0) * interval_s(channels)
                    gone = disconnects.look(channels, asked_at, answered_at)
                    self._on_look(shards, channels)
                    await self._handle(shards, gone, disconnects)
                    for heartbeat in changes.silent:
                        await self._lost_workers.reclaim_silent(shards, heartbeat)
                    for heartbeat in changes.returned:
                        self._lost_workers.returned(heartbeat)
                except StoreUnavailable:
                    connection_lost()
                    delay_s = _RETRY_S
                except StoreError as error:
                    connection_lost()
                    self._warn_refused(
                        "Redis %s: lost workers are found by their leases only: %s",
                        redis.name,
                        error,
                    )
                    delay_s = _REFUSED_S
                await asyncio.sleep(CONFIRM_S if disconnects.pending else delay_s)
        finally:
            connection.close()

    async def _expect_registered(self, disconnects: Disconnects) -> bool:
        """Expect the channels of all workers in the registry: one may have ended before this
        process began to watch. False if the registry's server does not answer."""
        try:
            async with asyncio.timeout(INTERVAL_S):
                ids = await self._queue.servers.primary.smembers(keys.WORKERS)
        except (StoreUnavailable, TimeoutError):  # the other servers are watched all the same
            return False
        disconnects.expect({keys.control_channel(each.decode(errors="replace")) for each in ids})
        return True

    async def _handle(self, shards: range, gone: list[str], disconnects: Disconnects) -> None:
        for position, channel in enumerate(gone):
            if channel.startswith(keys.CONTROL_CHANNEL):
                worker = channel.removeprefix(keys.CONTROL_CHANNEL)
                try:
                    await self._lost_workers.reclaim(shards, worker)
                except StoreError:
                    for each in gone[position:]:
                        disconnects.retry(each)
                    raise


def interval_s(channels: Set[str]) -> float:
    """The time between two looks, by how many gateways are among the subscribers."""
    n_gateways = sum(channel.startswith(keys.TOKENS_CHANNEL) for channel in channels)
    return min(_LONGEST_S, INTERVAL_S * max(1.0, n_gateways / _AT_FULL_RATE))


async def _channels(connection: Connection, shard: int) -> tuple[frozenset[str], frozenset[str]]:
    """The channels of processes, and the heartbeat channels of workers."""
    pattern = keys.channel_at(shard, keys.CHANNELS_PATTERN)
    reply = await connection.call("PUBSUB", channel_commands().channels, pattern)
    channels = frozenset(keys.plain_channel(each.decode(errors="replace")) for each in reply)
    beats = frozenset(name for name in channels if name.startswith(keys.HEARTBEAT_CHANNEL))
    return channels - beats, beats
