"""Checks that no Redis server evicts keys when its memory is full, which would delete jobs.

A process refuses to start with such a server. `EvictionMonitor` finds settings that are changed
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shared.platform.settings import SettingsError
from shared.platform.tasks import run_together
from shared.store.interface import StoreError, StoreRefused
from shared.store.redis.redis_client import server_name

log = logging.getLogger("flotilla.redis")

_INTERVAL_S = 5.0


def problem(info: Mapping[str, Any]) -> str:
    """Why a server with this INFO can't hold jobs; empty if it never evicts.

    INFO can be read from managed servers too, unlike CONFIG.
    """
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or not info.get("maxmemory"):
        return ""
    return f"its maxmemory-policy {policy} deletes jobs when its memory is full; set noeviction"


async def refuse_evicting(redis: Any) -> None:
    """Raise SettingsError if this client's server evicts.

    A server that is away passes, and so does one that hides its INFO, with a warning.
    """
    try:
        found = problem(await redis.info("memory"))
    except StoreRefused as error:
        log.warning(
            "Redis %s: it can't be checked whether it deletes jobs when its memory is full; "
            "set maxmemory-policy noeviction: %s",
            server_name(redis),
            error,
        )
        return
    except StoreError:
        return
    if found:
        raise SettingsError(f"Redis {server_name(redis)} can't be used for jobs: {found}")


class Memory(NamedTuple):
    """Of one server, in bytes."""

    used: int
    limit: int
    """0: there is none."""


class EvictionMonitor:
    """Checks servers every 5 s for evictions. Start `run` as a task."""

    def __init__(self, servers: Iterable[Any]) -> None:
        """`servers`: a client of each."""
        self._servers = list(servers)
        self._problems: dict[Any, str] = {}
        self._evicted: dict[Any, int] = {}
        self._memory: dict[Any, Memory] = {}

    @property
    def problem(self) -> str:
        """What the last check found; empty if all servers are fine."""
        return next(filter(None, self._problems.values()), "")

    @property
    def memory(self) -> Sequence[Memory]:
        """The memory of each server, as of the last check."""
        return list(self._memory.values())

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_INTERVAL_S)

    async def check(self) -> None:
        """Check all servers now. A server that is away keeps its last result."""
        await run_together(*map(self._check, self._servers))

    async def _check(self, redis: Any) -> None:
        try:
            info = await redis.info()
        except StoreError:
            return
        name = server_name(redis)
        self._memory[redis] = Memory(int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
        found, evicted = problem(info), int(info.get("evicted_keys", 0))
        # Keys evicted before this process started are not reported.
        more = evicted - self._evicted.get(redis, evicted)
        self._evicted[redis] = evicted
        if more > 0:
            log.error("Redis %s has evicted %d keys: jobs may be lost", name, more)
        before = self._problems.get(redis, "")
        self._problems[redis] = found or ("it has evicted keys just now" if more > 0 else "")
        if found and found != before:
            log.error("Redis %s can't be used for jobs: %s", name, found)
        elif before and not self._problems[redis]:
            log.info("Redis %s no longer evicts keys", name)
