"""The version of what is stored in Redis, and the check that no two versions share a database.

It is in a key of its own (`keys.FORMAT`). A process that finds another one refuses to start.
Releases before version 2 wrote no version; their data counts as 1. On a cluster the number of
shards is kept in the same way: where a job lies depends on it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.redis_client import server_name

FORMAT_VERSION = 4
"""Counted up with every change that the release before can't read."""

log = logging.getLogger("flotilla.redis")

_INTERVAL_S = 10.0
_UNCHECKED_INTERVAL_S = 0.1
"""Short: a process may use a Redis that is back before the check has been made."""
_UNREADABLE = "unknown"


class FormatMismatch(SettingsError):
    """A Redis holds data of another format version."""

    def __init__(self, server: str, found: str) -> None:
        """`server`: its address; `found`: the version of its data."""
        self.found = found
        super().__init__(
            f"Redis {server} holds data of format {found}, this release needs {FORMAT_VERSION}: "
            "let the fleet that uses it finish and stop it, then flush that database, or give "
            "this fleet a database of its own (FLOTILLA_REDIS_URL)"
        )


class ShardsMismatch(FormatMismatch):
    """The fleet on a cluster has another number of shards."""

    def __init__(self, server: str, found: str, expected: int) -> None:
        """`server`: its address; `found`: the fleet's number of shards."""
        self.found = found
        SettingsError.__init__(
            self,
            f"FLOTILLA_SHARDS is {expected}, and the fleet on Redis {server} has {found} shards: "
            "set the same number for all its processes",
        )


async def check_format(redis: Any, n_shards: int) -> bool:
    """Mark a Redis without data; returns whether it could be reached. Raises FormatMismatch."""
    try:
        if keys.sharded():
            await redis.set(keys.SHARDS, n_shards, nx=True)
            found = (await redis.get(keys.SHARDS) or b"no").decode(errors="replace")
            if found != str(n_shards):
                raise ShardsMismatch(server_name(redis), found, n_shards)
        if not await is_marked(redis, n_shards):
            await redis.set(keys.FORMAT, FORMAT_VERSION, nx=True)
            await is_marked(redis, n_shards)  # of two versions that start at once, one wins
    except StoreError:
        return False
    return True


async def is_marked(redis: Any, n_shards: int) -> bool:
    """Whether the Redis is marked with this release's version; if not, it holds no jobs.

    Raises FormatMismatch, and StoreError.
    """
    found = await _found(redis)
    if found is None and any(await _each_unversioned(redis, "EXISTS", n_shards)):
        found = "1"
    if found not in {None, str(FORMAT_VERSION)}:
        raise FormatMismatch(server_name(redis), str(found))
    return found is not None


async def _each_unversioned(redis: Any, command: str, n_shards: int) -> list[int]:
    """One command for each key: a server in cluster mode refuses keys of two slots in one."""
    pipeline = redis.pipeline(transaction=False)
    for key in keys.unversioned(n_shards):
        pipeline.execute_command(command, key)
    replies: list[int] = await pipeline.execute()
    return replies


async def _found(redis: Any) -> str | None:
    raw = await redis.get(keys.FORMAT)
    if raw is None:
        return None
    text: str = raw.decode(errors="replace")
    return text if text.isdecimal() else _UNREADABLE


class FormatMonitor:
    """Checks Redis every 10 s. Start `run` as a task; it raises FormatMismatch.

    Finds a Redis that was away at the start, one whose data was replaced, and a process of a
    release that does not check the version.
    """

    def __init__(self, redis: Any, n_shards: int) -> None:
        self._redis = redis
        self._n_shards = n_shards
        self.problem = ""
        """What is wrong, in a sentence; empty if nothing is."""
        self.mismatch = ""
        """The FormatMismatch that `run` has raised; empty if it has not."""

    async def run(self) -> None:
        """Ends by cancellation, or raises FormatMismatch."""
        checked = False
        while True:
            checked = await self.check() or checked
            await asyncio.sleep(_INTERVAL_S if checked else _UNCHECKED_INTERVAL_S)

    async def check(self) -> bool:
        """Check now; returns whether Redis could be reached. Raises FormatMismatch."""
        try:
            reached = await check_format(self._redis, self._n_shards)
        except FormatMismatch as error:
            self.problem = self.mismatch = str(error)
            raise
        self.problem = await self._remove_unversioned()
        return reached

    async def _remove_unversioned(self) -> str:
        """What is wrong with the Redis; empty if nothing is, or if it is away.

        This fleet owns the database, so only a running process of an old release writes these keys.
        """
        try:
            if not any(await _each_unversioned(self._redis, "DEL", self._n_shards)):
                return ""
        except StoreError:
            return ""
        name = server_name(self._redis)
        problem = f"a process of an older release uses Redis {name}, too: stop it"
        log.error("%s", problem)
        return problem
