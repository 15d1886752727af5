"""The version of what is stored in Redis, and the check that no two versions share a database.

It is in a key of its own (`keys.FORMAT`). A process that finds another one refuses to start. On a
cluster the number of shards is kept in the same way: where a job lies depends on it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.redis_client import server_name

FORMAT_VERSION = 5
"""Counted up with every change that the release before can't read."""

_INTERVAL_S = 10.0
_UNCHECKED_INTERVAL_S = 0.1
"""Short: a process may use a Redis that is back before the check has been made."""


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
        await redis.set(keys.FORMAT, FORMAT_VERSION, nx=True)
        found = (await redis.get(keys.FORMAT) or b"no").decode(errors="replace")
    except StoreError:
        return False
    if found != str(FORMAT_VERSION):
        raise FormatMismatch(server_name(redis), found)
    return True


class FormatMonitor:
    """Checks Redis every 10 s. Start `run` as a task; it raises FormatMismatch.

    Finds a Redis that was away at the start, and one whose data was replaced.
    """

    def __init__(self, redis: Any, n_shards: int) -> None:
        self._redis = redis
        self._n_shards = n_shards
        self.problem = ""
        """The FormatMismatch that `run` has raised; empty if it has not."""

    async def run(self) -> None:
        """Ends by cancellation, or raises FormatMismatch."""
        checked = False
        while True:
            try:
                checked = await check_format(self._redis, self._n_shards) or checked
            except FormatMismatch as error:
                self.problem = str(error)
                raise
            await asyncio.sleep(_INTERVAL_S if checked else _UNCHECKED_INTERVAL_S)
