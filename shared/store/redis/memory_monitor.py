"""Looks at the memory of the Redis servers, so that no job is accepted that they have no room for.

Redis refuses writes when its memory is full, or goes beyond its limit where it must not. Gateways
refuse new jobs before that, at a mark, and batches wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from shared.fleet.memory_room import MemoryRoom, job_bytes
from shared.job.errors import RedisMemoryFull
from shared.job.job import NewJob
from shared.platform.tasks import run_together
from shared.store.interface import StoreError
from shared.store.redis.job_queue import JobQueue

_INTERVAL_S, _LEAST_INTERVAL_S = 5.0, 0.25


class MemoryMonitor:
    """The room in each server for the jobs of one process. Start `run` as a task."""

    def __init__(self, queue: JobQueue, mark: float) -> None:
        """`mark`: see MemoryRoom."""
        self._queue = queue
        self._rooms = [MemoryRoom(mark) for _ in queue.servers.groups]
        self._outdated = asyncio.Event()

    def room(self, shard: int) -> MemoryRoom:
        """That of the shard's server."""
        groups = self._queue.servers.groups
        return next(
            room for shards, room in zip(groups, self._rooms, strict=True) if shard in shards
        )

    @property
    def problem(self) -> str:
        """Why new jobs are refused, in words; empty if they are not."""
        return next((room.why for room in self._rooms if room.limit and room.is_full), "")

    def take_job(self, job: NewJob) -> bool:
        """Take the room that a job needs; False: there is none."""
        return self.take(job.shard, job_bytes(len(job.body)))

    def take(self, shard: int, n_bytes: float) -> bool:
        """Take room for so many bytes; False: there is none."""
        room = self.room(shard)
        taken = room.take(n_bytes)
        if room.is_outdated or not taken:
            self._outdated.set()
        return taken

    def refusal(self, shard: int) -> RedisMemoryFull:
        """The error where there is no room."""
        why = self.room(shard).why
        return RedisMemoryFull(f"{why}: nothing new is accepted until results have expired.")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self._outdated.wait()
                    await asyncio.sleep(_LEAST_INTERVAL_S)

    async def look(self) -> None:
        """Look at all servers now. One that is away, or hides its INFO, keeps its last result."""
        self._outdated.clear()
        groups = self._queue.servers.groups
        clients = [self._queue.servers.of(shards[0]) for shards in groups]
        with contextlib.suppress(StoreError):
            infos = await run_together(*map(_memory, clients))
            for room, (used, limit) in zip(self._rooms, infos, strict=True):
                room.looked(used, limit)


async def _memory(redis: Any) -> tuple[int, int]:
    """(used, limit) bytes of a server; what Redis does not count as used is not."""
    info = await redis.info("memory")
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    return used, int(info.get("maxmemory", 0))
