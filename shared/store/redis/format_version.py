"""The version of what is stored in Redis, and the check that no two versions share a database.

Every server of the fleet holds the version in a key of its own (`keys.FORMAT`). A process that
finds another one refuses to start. Releases before version 2 wrote no version; their data counts as
1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.redis_client import connect, server_name
from shared.store.redis.store_errors import WrongType

FORMAT_VERSION = 4
"""Counted up with every change that the release before can't read."""

log = logging.getLogger("flotilla.redis")

_INTERVAL_S = 10.0
_UNCHECKED_INTERVAL_S = 0.1
"""Short: a process may use a server that is back before the check has been made."""
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


async def refuse_other_format(urls: Iterable[str], n_shards: int) -> None:
    """Raise FormatMismatch if one of these servers holds data of another version.

    Otherwise empty databases are marked with this release's version. `urls` starts with the
    primary server. A server that is away passes: FormatMonitor checks it later.
    """
    servers: list[Any] = []
    for url in dict.fromkeys(urls):
        with contextlib.suppress(ValueError):  # not an address; connecting to it reports that
            servers.append(connect(url, max_connections=1))
    try:
        await check_format(servers, n_shards)
    finally:
        for redis in servers:
            await redis.aclose(close_connection_pool=True)


async def check_format(servers: Sequence[Any], n_shards: int) -> bool:
    """Mark the servers without data; returns whether all could be reached.

    Raises FormatMismatch, before anything is marked if the data was there before.
    """
    found = await asyncio.gather(
        *(is_marked(redis, n_shards) for redis in servers), return_exceptions=True
    )
    for result in found:
        if isinstance(result, BaseException) and not isinstance(result, StoreError):
            raise result
    all_reached = True
    # One after the other: of two versions that start at once, one wins at the first server, and
    # the other one marks nothing.
    for redis, marked in zip(servers, found, strict=True):
        try:
            if marked is False:
                await redis.set(keys.FORMAT, FORMAT_VERSION, nx=True)
                await is_marked(redis, n_shards)
        except StoreError:
            all_reached = False
        all_reached = all_reached and not isinstance(marked, BaseException)
    return all_reached


async def is_marked(redis: Any, n_shards: int) -> bool:
    """Whether the server is marked with this release's version; if not, it holds no jobs.

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
    try:
        raw = await redis.get(keys.FORMAT)
    except WrongType:
        return _UNREADABLE
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
            await asyncio.sleep(_INTERVAL_S if checked else _UNCHECKED_INTERVAL_S)

    async def check(self) -> bool:
        """Check all servers now; returns whether each could be reached. Raises FormatMismatch."""
        try:
            all_reached = await check_format(self._servers, self._n_shards)
        except FormatMismatch as error:
            self.problem = self.mismatch = str(error)
            raise
        problems = await asyncio.gather(*map(self._remove_unversioned, self._servers))
        self.problem = next(filter(None, problems), "")
        return all_reached

    async def _remove_unversioned(self, redis: Any) -> str:
        """What is wrong with the server; empty if nothing is, or if it is away.

        This fleet owns the database, so only a running process of an old release writes these keys.
        """
        try:
            if not any(await _each_unversioned(redis, "DEL", self._n_shards)):
                return ""
        except StoreError:
            return ""
        problem = f"a process of an older release uses Redis {server_name(redis)}, too: stop it"
        log.error("%s", problem)
        return problem
