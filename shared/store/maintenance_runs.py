"""When each maintenance task has run."""

from __future__ import annotations

from collections.abc import Collection

from shared.store import keys
from shared.store.servers import Servers


class MaintenanceRuns:
    """Of all tasks of a fleet. Methods raise StoreError."""

    def __init__(self, servers: Servers) -> None:
        self._redis = servers.primary

    async def begin(self, task: str, round_s: float) -> bool:
        """Whether the task is the caller's in this round, which lasts for so long."""
        key = keys.fleet("maintenance_lock", task)
        return bool(await self._redis.set(key, 1, nx=True, px=int(round_s * 1000)))

    async def has_begun(self, task: str) -> bool:
        """Whether any process has begun the task in the present round."""
        return bool(await self._redis.exists(keys.fleet("maintenance_lock", task)))

    async def done(self, task: str) -> None:
        """The task is complete."""
        now_s = int(await self._redis.time())
        await self._redis.hset(keys.fleet("maintenance"), task, now_s)

    async def seconds_since(self, task: str) -> float | None:
        """How long ago any process completed the task; None: never."""
        done_s = await self._redis.hget(keys.fleet("maintenance"), task)
        now_s = int(await self._redis.time())
        return None if done_s is None else now_s - int(done_s)

    async def all(self) -> dict[str, int]:
        """When each task was completed last, Unix seconds."""
        runs = await self._redis.hgetall(keys.fleet("maintenance"))
        return {task.decode(): int(done_s) for task, done_s in runs.items()}

    async def forget_all_but(self, tasks: Collection[str]) -> int:
        """Delete the records of other tasks; returns how many."""
        others = [task for task in await self.all() if task not in tasks]
        return int(await self._redis.hdel(keys.fleet("maintenance"), *others)) if others else 0
