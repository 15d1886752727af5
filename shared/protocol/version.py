"""The version of what is stored in Redis, and the check that no two versions share a database.

Every server of the fleet holds the version in a key of its own (`keys.FORMAT`). A process that
finds another one refuses to start. Releases before version 2 wrote no version; their data counts as
1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from shared.platform.redis_client import RedisError, connect, is_wrong_type, server_name
from shared.platform.settings import SettingsError
from shared.protocol import keys

FORMAT_VERSION = 2
"""Counted up with every change that the release before can't read."""

log = logging.getLogger("flotilla.redis")

_INTERVAL_S = 10.0
_FIRST_CHECK_S = 1.0
_UNREADABLE = "unknown"


class FormatMismatch(SettingsError):
    """A Redis holds data of another format version."""


async def refuse_other_format(urls: Iterable[str], n_shards: int) -> None:
    """Raise FormatMismatch if one of these servers holds data of another version.

    An empty database is marked with this release's version. A server that is away passes:
    FormatMonitor checks it later.
    """
    await asyncio.gather(*(_refuse(url, n_shards) for url in dict.fromkeys(urls)))


async def _refuse(url: str, n_shards: int) -> None:
    try:
        redis: Any = connect(url, max_connections=1)
    except ValueError:
        return  # not an address; connecting to it reports that
    try:
        await check_format(redis, n_shards)
    except (RedisError, OSError):
        return
    finally:
        await redis.aclose(close_connection_pool=True)


async def check_format(redis: Any, n_shards: int) -> None:
    """Mark the server with this release's version unless it holds data. Raises FormatMismatch."""
    found = await _found(redis)
    if found is None and await redis.exists(*keys.unversioned(n_shards)):
        found = "1"
    if found is None:
        # Two processes may get here at once: the first one wins, the other one reads its version.
        await redis.set(keys.FORMAT, FORMAT_VERSION, nx=True)
        found = await _found(redis)
    if found is not None and found != str(FORMAT_VERSION):
        raise FormatMismatch(
            f"Redis {server_name(redis)} holds data of format {found}, this release needs "
            f"{FORMAT_VERSION}: let the fleet that uses it finish and stop it, then flush that "
            "database, or give this fleet a database of its own (FLOTILLA_REDIS_URL)"
        )


async def _found(redis: Any) -> str | None:
    try:
        raw = await redis.get(keys.FORMAT)
    except RedisError as error:
        if is_wrong_type(error):
            return _UNREADABLE
        raise
    if raw is None:
        return None
    text: str = raw.decode(errors="replace")
    return text if text.isdecimal() else _UNREADABLE


class FormatMonitor:
    """Checks the servers every 10 s. Start `run` as a task; it raises FormatMismatch.

    Finds a Redis that was away at the start, one whose data was replaced, and a process of a
    release that does not check the version.
    """

    def __init__(self, servers: Iterable[Any], n_shards: int) -> None:
        """`servers`: a client of each; duplicates are ignored."""
        self._servers = list(dict.fromkeys(servers))
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
            await asyncio.sleep(_INTERVAL_S if checked else _FIRST_CHECK_S)

    async def check(self) -> bool:
        """Check all servers now; returns whether each could be reached. Raises FormatMismatch."""
        results = await asyncio.gather(
            *(self._check(redis) for redis in self._servers), return_exceptions=True
        )
        for result in results:
            if isinstance(result, FormatMismatch):
                self.problem = self.mismatch = str(result)
                raise result
        self.problem = next((found for found in results if isinstance(found, str) and found), "")
        return not any(isinstance(result, BaseException) for result in results)

    async def _check(self, redis: Any) -> str:
        owned = await _found(redis) == str(FORMAT_VERSION)
        if not owned:
            await check_format(redis, self._n_shards)
            return ""
        # The fleet owns the database, so only a running process of an old release writes these.
        if not await redis.delete(*keys.unversioned(self._n_shards)):
            return ""
        problem = f"a process of an older release uses Redis {server_name(redis)}, too: stop it"
        log.error("%s", problem)
        return problem
