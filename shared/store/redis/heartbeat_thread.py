"""The worker's heartbeat, in a thread of its own: it goes on while the event loop is busy.

Each beat is another channel that the thread subscribes to; see heartbeats.py. A call
that holds the interpreter's lock delays it, too. An engine or a loop that hangs does not stop it:
leases are renewed by the loop, while the engine makes progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from itertools import count
from typing import Any

from shared.platform.tasks import end
from shared.store.connection import Connection
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.heartbeats import BEAT_S
from shared.store.servers import Servers
from shared.store.subscription import channel_commands

_ANSWER_S = 1.0
"""Longest wait for Redis; then the thread connects anew."""
_RETRY_S = 0.1


class Heartbeat:
    """Beats at Redis from `start` until `stop`, or until the process ends."""

    def __init__(self, url: str, shards: int, worker_id: str) -> None:
        self._url = url
        self._shards = shards
        self._worker_id = worker_id
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="heartbeat", daemon=True
        )

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; does nothing if it does not run."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the thread has closed its loop just now
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_ANSWER_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A loop of its own needs clients of its own.
        async with Servers(self._url, self._shards) as servers:
            tasks = [
                asyncio.create_task(self._beat(servers.of(shards[0]), shards[0]))
                for shards in servers.groups
            ]
            await self._stopped.wait()
            await end(tasks)

    async def _beat(self, redis: Any, shard: int) -> None:
        connection, before = Connection(redis.server, _ANSWER_S), ""
        commands = channel_commands()
        try:
            for number in count():
                beat = keys.heartbeat_channel(self._worker_id, number)
                channel = keys.channel_at(shard, beat)
                try:
                    await connection.call(commands.subscribe, channel)
                    if before:
                        await connection.call(commands.unsubscribe, before)
                    before = channel
                except StoreError:
                    connection.give_up("a beat failed")
                    await asyncio.sleep(_RETRY_S)
                else:
                    await asyncio.sleep(BEAT_S)
        finally:
            connection.close()
