"""The lease of all jobs of a worker: a thread of its own writes at least twice a second that the
worker is there, and goes on while the event loop is busy.

It stops while the loop stands still: then no stream of the worker goes on, and its jobs had better
go to others. A call that holds the interpreter's lock stops the thread, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from shared.platform.tasks import end
from shared.store.errors import StoreError
from shared.store.queue import Queue
from shared.store.servers import Servers

BEAT_S = 0.5
"""Longest time between two heartbeats."""
_BEATS_PER_LEASE = 4
LOOP_S = 2.0
"""So long the event loop may stand still."""
_TURN_S = 0.25
_ANSWER_S = 0.5
"""Longest wait for a server; then its master is looked for anew."""
_RETRY_S = 0.1


class Heartbeat:
    """Beats in each shard from `start` until `stop`, or until the process ends."""

    def __init__(self, url: str, shards: int, worker: str, lease_s: float = 2.0) -> None:
        self._url, self._shards, self._worker = url, shards, worker
        self._lease_s = lease_s
        self._turned_at = time.monotonic()
        self._turn: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="heartbeat", daemon=True
        )

    def start(self) -> None:
        """Begin to beat, while the running event loop turns."""
        self._note_turn(asyncio.get_running_loop())
        self._thread.start()

    def stop(self) -> None:
        """End the thread; does nothing if it does not run."""
        if self._turn is not None:
            self._turn.cancel()
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the thread has closed its loop just now
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(2 * _ANSWER_S)

    def _note_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned_at = time.monotonic()
        self._turn = loop.call_later(_TURN_S, self._note_turn, loop)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A loop of its own needs connections of its own.
        async with Servers(self._url, self._shards) as servers:
            queue = Queue(servers)
            # Of each server, so that one that stands still ends no lease of the others.
            tasks = [asyncio.create_task(self._beat(queue, each)) for each in servers.groups]
            try:
                await self._stopped.wait()
            finally:
                await end(tasks)
                await queue.close()

    async def _beat(self, queue: Queue, shards: range) -> None:
        while True:
            due = time.monotonic() + min(BEAT_S, self._lease_s / _BEATS_PER_LEASE)
            if time.monotonic() - self._turned_at < LOOP_S:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        for shard in shards:
                            await queue.heartbeat(shard, self._worker, self._lease_s)
                except (StoreError, TimeoutError):
                    queue.give_up(shards[0], "a heartbeat was not answered")
                    due = time.monotonic() + _RETRY_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
