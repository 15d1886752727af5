"""A Redis that evicts keys when its memory is full throws jobs away.

Such a one is refused when a process starts. Whoever changes its settings later is found by `Watch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from shared.fleet.servers import Servers
from shared.platform.redis_client import RedisError, connect
from shared.platform.settings import SettingsError

log = logging.getLogger("flotilla.redis")

_LOOK_S = 10.0


def problem(info: Mapping[str, Any]) -> str:
    """What is wrong with a server of which this is the INFO; empty if it evicts nothing.

    INFO, unlike CONFIG, can be asked of managed servers too.
    """
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or not info.get("maxmemory"):
        return ""
    return f"its maxmemory-policy {policy} deletes jobs when its memory is full; set noeviction"


async def refuse(urls: Iterable[str]) -> None:
    """Raises SettingsError if one of these servers evicts. One that can't be asked now passes."""
    await asyncio.gather(*(_refuse(url) for url in dict.fromkeys(urls)))


async def _refuse(url: str) -> None:
    try:
        redis: Any = connect(url, max_connections=1)
    except ValueError:
        return  # no address; whoever connects says so
    try:
        found = problem(await redis.info("memory"))
    except (RedisError, OSError):
        return
    finally:
        await redis.aclose(close_connection_pool=True)
    if found:
        raise SettingsError(f"Redis can't be used for jobs: {found}")


class Watch:
    """Looks at all servers every so often. Start `run` as a task."""

    def __init__(self, servers: Servers) -> None:
        self._servers = dict.fromkeys([servers.primary, *servers.all])
        self._problems: dict[Any, str] = {}
        self._evicted: dict[Any, int] = {}

    @property
    def problem(self) -> str:
        """What was wrong at the last look; empty if nothing was."""
        return next(filter(None, self._problems.values()), "")

    async def run(self) -> None:
        """Ends by cancellation."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Look now. What a server that is away said last is kept."""
        await asyncio.gather(*map(self._look_at, self._servers))

    async def _look_at(self, redis: Any) -> None:
        try:
            info = await redis.info()
        except (RedisError, OSError):
            return
        found, evicted = problem(info), int(info.get("evicted_keys", 0))
        # What it evicted before this process came is not told; its count begins anew with it.
        more = evicted - self._evicted.get(redis, evicted)
        self._evicted[redis] = evicted
        if more > 0:
            log.error("Redis has evicted %d keys: jobs may be lost", more)
        before = self._problems.get(redis, "")
        self._problems[redis] = found or ("it has evicted keys just now" if more > 0 else "")
        if found and found != before:
            log.error("Redis can't be used for jobs: %s", found)
        elif before and not self._problems[redis]:
            log.info("Redis evicts nothing any more")
