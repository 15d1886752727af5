"""Whether the fleet's Redis servers can be used for jobs: checked at a start, and every 5 s.

At a start a process refuses a server of the wrong kind or version, one that evicts keys when its
memory is full, one that may lose writes although FLOTILLA_DURABLE forbids it, data of another
format, and rights too small for the scripts. A server that is away passes: `Health` looks later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from itertools import starmap
from math import inf
from typing import Any

from shared.fleet.fleet_settings import FleetSettings
from shared.platform.redis_url import is_cluster
from shared.platform.settings import SettingsError
from shared.platform.tasks import run_together
from shared.store import keys
from shared.store.connection import TIMEOUT_S
from shared.store.errors import TRANSIENT, StoreError, StoreRefused
from shared.store.queue import Queue, Room
from shared.store.servers import Servers

log = logging.getLogger("flotilla.redis")

FORMAT_VERSION = 7
"""Of what is stored. Counted up with every change that the release before can't read."""
_OLDEST = 7
"""The first major version of Redis that can be used; Valkey calls itself 7.2."""
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
"""With `appendfsync everysec`, the default, Redis may lose about a second of writes that it has
acknowledged, when its machine loses power or it is killed while the disk is busy."""

_INTERVAL_S = 2.0
_UNCHECKED_INTERVAL_S = 0.1
"""Until the format was read: other processes may use a Redis that is back at once."""

_BUFFER_BYTES = 20 << 20
"""What buffers may take at times, as for a call that submits a megabyte."""
_SHARE = 1 / 4
"""Of a server's memory, for each tenant where several keep data."""


class FormatMismatch(SettingsError):
    """The fleet's Redis holds data of another format, or of a fleet with other shards."""

    def __init__(self, message: str, found: str) -> None:
        """`found`: what is stored there."""
        self.found = found
        super().__init__(message)


# --- at the start ---


async def refuse_unfit(settings: FleetSettings) -> None:
    """Raise SettingsError if the fleet's Redis can't be used.

    One without data is marked with this release's format and, on a cluster, the number of shards.
    """
    cluster = is_cluster(settings.redis_url)
    if settings.shards > 1 and not cluster:
        raise SettingsError(
            f"FLOTILLA_SHARDS is {settings.shards}: one Redis has one shard, several are for a "
            "cluster (redis+cluster://)"
        )
    try:
        servers = Servers(settings.redis_url, settings.shards)
    except ValueError as error:
        raise SettingsError(f"FLOTILLA_REDIS_URL: {error}") from None
    async with servers:
        for redis in servers.all:
            problem = await _unfit(redis, cluster=cluster)
            if problem or (problem := await _volatile(redis, durable=settings.durable)):
                raise SettingsError(f"Redis {redis.name} can't be used: {problem}")
        await _check_format(servers)
        queue = Queue(servers)
        try:
            for shards in servers.groups:
                await _refuse_without_scripts(queue, shards[0])
        finally:
            await queue.close()


async def _unfit(redis: Any, *, cluster: bool) -> str:
    """Why a server can't be used, by its INFO; empty if it can, is away, or hides it."""
    try:
        info = await redis.info()
    except StoreError as error:
        if "cluster support disabled" in str(error):
            return "it is no cluster: use redis:// instead of redis+cluster://"
        if isinstance(error, StoreRefused):
            log.warning(
                "Redis %s: it can't be checked whether it deletes jobs when its memory is full; "
                "set maxmemory-policy noeviction: %s",
                redis.name,
                error,
            )
        return ""
    is_node, version = bool(info.get("cluster_enabled")), str(info.get("redis_version", ""))
    if is_node and not cluster:
        return "it is a node of a cluster: use redis+cluster:// instead of redis://"
    if cluster and not is_node:
        return "it is no cluster: use redis:// instead of redis+cluster://"
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST:
        return f"its version is {version}, and Redis or Valkey {_OLDEST}.0 or newer is needed"
    return evicts(info)


def evicts(info: Mapping[str, Any]) -> str:
    """Why a server with this INFO can't hold jobs; empty if it never deletes them."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or not info.get("maxmemory"):
        return ""
    return f"its maxmemory-policy {policy} deletes jobs when its memory is full; set noeviction"


async def _volatile(redis: Any, *, durable: bool) -> str:
    """Why a server loses writes that it has acknowledged, if that is forbidden; else log it."""
    try:
        config = await redis.config_get(*_DURABLE)
    except StoreRefused as error:  # managed servers have no CONFIG
        if durable:
            name = redis.name
            log.warning("FLOTILLA_DURABLE: the settings of Redis %s can't be read: %s", name, error)
        return ""
    except StoreError:
        return ""
    if durable:
        wrong = [
            f"{name} is {config.get(name)}, it has to be {value}"
            for name, value in _DURABLE.items()
            if config.get(name) != value
        ]
        return f"it is not durable (FLOTILLA_DURABLE): {'; '.join(wrong)}" if wrong else ""
    if config.get("appendonly") == "no":
        log.warning(
            "Redis %s: appendonly is no: jobs are lost when Redis stops; set it to yes",
            redis.name,
        )
    return ""


async def _check_format(servers: Servers) -> bool:
    """Mark a Redis without data; returns whether it could be reached. Raises FormatMismatch."""
    redis = servers.primary
    try:
        if keys.sharded():  # where a job lies depends on it
            found = await _first(redis, keys.fleet("shards"), servers.shards)
            if found != str(servers.shards):
                raise FormatMismatch(
                    f"FLOTILLA_SHARDS is {servers.shards}, and the fleet on Redis "
                    f"{redis.name} has {found} shards: set the same number for all its "
                    "processes",
                    found,
                )
        found = await _first(redis, keys.fleet("format"), FORMAT_VERSION)
    except StoreError:
        return False
    if found != str(FORMAT_VERSION):
        raise FormatMismatch(
            f"Redis {redis.name} holds data of format {found}, this release needs "
            f"{FORMAT_VERSION}: let the fleet that uses it finish and stop it, then flush that "
            "database, or give this fleet a database of its own (FLOTILLA_REDIS_URL)",
            found,
        )
    return True


async def _first(redis: Any, key: str, value: int) -> str:
    """Store a value unless one is there; returns what is there."""
    await redis.set(key, value, nx=True)
    return (await redis.get(key) or b"no").decode(errors="replace")


async def _refuse_without_scripts(queue: Queue, shard: int) -> None:
    try:
        await _probe(queue, shard, "start")
    except TRANSIENT:  # it is away, or can't be written to now
        pass
    except StoreRefused as error:
        raise SettingsError(
            f"Redis {queue.servers.of(shard).name} can't be used: scripts have to be able "
            f"to write and to call PUBSUB there: {error}"
        ) from None


def _probe(queue: Queue, shard: int, who: str) -> Awaitable[Any]:
    return queue.scripts(shard).run_once("probe", shard, (who,))


# --- while a process runs ---


async def write_problems(queue: Queue, who: str) -> tuple[str, list[str]]:
    """What prevents writes: to the primary, and by a script to each group's server; empty: nothing.

    `who` is written. A PING would not detect that the memory of Redis is full.
    """
    primary = queue.servers.primary.set(keys.fleet("probe"), who, px=10_000)
    probes = [_probe(queue, shards[0], who) for shards in queue.servers.groups]
    found = await run_together(*map(_problem, (primary, *probes)))
    return found[0], found[1:]


async def _problem(call: Awaitable[Any]) -> str:
    try:
        # A script may wait for its connection first, and both have this limit.
        async with asyncio.timeout(TIMEOUT_S):
            await call
    except TimeoutError:
        return f"no answer in {TIMEOUT_S:.0f} s"
    except StoreError as error:
        return str(error)[:200] or type(error).__name__
    return ""


class Memory:
    """One server's memory, as of the last look."""

    def __init__(self, name: str, mark: float) -> None:
        self._name = name
        self._mark = mark
        self._left = inf  # to the mark
        self._evicted: int | None = None
        self.used = self.limit = 0
        """In bytes; no limit: 0."""
        self.eviction = ""
        """Why it deletes jobs; empty if it does not."""

    def looked(self, info: Mapping[str, Any]) -> None:
        """The server's INFO now; one that is hidden sets no limit."""
        evicted = int(info.get("evicted_keys", 0))
        # Keys evicted before this process started are not reported.
        more = evicted - (evicted if self._evicted is None else self._evicted)
        if more > 0:
            log.error("Redis %s has evicted %d keys: jobs may be lost", self._name, more)
        before, found = self.eviction, evicts(info)
        self._evicted = evicted
        self.eviction = found or ("it has evicted keys just now" if more > 0 else "")
        if found and found != before:
            log.error("Redis %s can't be used for jobs: %s", self._name, found)
        elif before and not self.eviction:
            log.info("Redis %s no longer evicts keys", self._name)
        # What Redis does not count as used does not lead to a refusal either.
        self.used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
        self.limit = int(info.get("maxmemory", 0))
        self._left = self._mark * self._most - self.used

    @property
    def _most(self) -> float:
        return self.limit - _BUFFER_BYTES if self.limit else inf

    @property
    def is_near(self) -> bool:
        """Whether the mark may be reached before the next look."""
        return self._left < self.limit / 4

    def room(self, accepted: int, tenants: int, largest: int, shards: int, quota: int) -> Room:
        """Of one of the server's shards, where so many bytes were ever accepted, as it is now.

        So many tenants keep data; `largest`: what one of them does at most; `quota`: of each; 0: a
        share, where there are several. Above the mark there is room for who keeps less, and for
        answers, which are never refused.
        """
        share = self.limit / shards * _SHARE if tenants > 1 and self.limit else inf
        mark, most = self._left / shards, (self._most - self.used) / shards
        return Room(quota or share, accepted + mark, accepted + most, largest)

    @property
    def full(self) -> str:
        """Why not all is accepted, in words; empty if it is."""
        if self._left > 0:
            return ""
        return f"Redis uses {self.used / self.limit:.0%} of its memory; the rest is for answers"


class Health:
    """The servers of a running process: their format, whether they evict, and their memory, by
    which the queue refuses what is new.

    Start `run` as a task. A server that is away, or hides its INFO, keeps its last result.
    """

    def __init__(self, queue: Queue, mark: float = 1.0) -> None:
        """`mark`: the share of a server's memory above which not all is accepted."""
        self._queue = queue
        self._servers = queue.servers
        self._memory = {redis: Memory(redis.name, mark) for redis in self._servers.all}
        self.format = ""
        """Why this release can't use its Redis; empty if it can."""

    @property
    def eviction(self) -> str:
        """Which server deletes jobs, as of the last look; empty if none does."""
        return next((each.eviction for each in self.memory if each.eviction), "")

    @property
    def memory(self) -> Sequence[Memory]:
        """Of each server."""
        return list(self._memory.values())

    @property
    def full(self) -> str:
        """Why new jobs are refused of those who keep most, in words; empty if they are not."""
        return next((each.full for each in self.memory if each.full), "")

    async def run(self) -> None:
        """Look until cancelled. Raises FormatMismatch if a Redis has come back with other data."""
        checked = False
        while True:
            try:
                checked = await _check_format(self._servers) or checked
            except FormatMismatch as error:
                self.format = str(error)
                raise
            await self.look()
            await asyncio.sleep(_INTERVAL_S if checked else _UNCHECKED_INTERVAL_S)

    async def look(self) -> None:
        """Look at all servers now."""
        shards: dict[Any, Sequence[int]] = dict.fromkeys(self._servers.all, ())
        shards |= {self._servers.of(group[0]): group for group in self._servers.groups}
        await run_together(*starmap(self._look, shards.items()))

    async def _look(self, redis: Any, shards: Sequence[int]) -> None:
        memory = self._memory[redis]
        pipeline = redis.pipeline(transaction=False)
        for shard in shards:
            pipeline.hget(keys.of("kept", shard), keys.KEPT_ACCEPTED)
            pipeline.hlen(keys.of("kept", shard))
        pipeline.info()
        try:
            *flat, info = await pipeline.execute()
            memory.looked(info)
            for shard, accepted, fields in zip(shards, flat[::2], flat[1::2], strict=True):
                largest = await self._largest(shard) if memory.is_near else 0
                self._queue.rooms[shard] = memory.room(
                    int(accepted or 0), fields - (accepted is not None), largest, len(shards),
                    self._queue.quotas.kept_bytes,
                )  # fmt: skip
        except StoreError:
            return

    async def _largest(self, shard: int) -> int:
        kept = await self._servers.of(shard).hgetall(keys.of("kept", shard))
        kept.pop(keys.KEPT_ACCEPTED.encode(), None)
        return max(map(int, kept.values()), default=0)
