"""What a process checks of its Redis before it starts, and a gateway for its readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from shared.fleet.fleet_settings import FleetSettings
from shared.platform.cluster_url import is_cluster
from shared.platform.settings import SettingsError
from shared.platform.tasks import run_together
from shared.store.interface import StoreError, StoreRefused, StoreUnwritable
from shared.store.redis import keys
from shared.store.redis.durability import refuse_volatile
from shared.store.redis.eviction import refuse_evicting
from shared.store.redis.format_version import check_format
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.redis_client import TIMEOUT_S, server_name
from shared.store.redis.servers import Servers

_OLDEST = 7
"""The first major version of Redis that can be used; Valkey calls itself 7.2."""


async def refuse_unfit(settings: FleetSettings) -> None:
    """Raise SettingsError if the fleet's Redis is a cluster and its URL says it is none, or the
    other way round, has several shards without a cluster, is too old, evicts keys, is not durable
    although it has to be, holds data of another format, or can't run the scripts. One without data
    is marked with this release's format.

    A server that is away passes; the monitors of running processes check it later.
    """
    refuse_shards(settings.redis_url, settings.shards)
    try:
        servers = Servers(settings.redis_url, settings.shards, max_connections=1)
    except ValueError as error:
        raise SettingsError(f"FLOTILLA_REDIS_URL: {error}") from None
    async with servers:
        if problem := await _wrong_kind(servers.primary, cluster=is_cluster(settings.redis_url)):
            raise SettingsError(f"FLOTILLA_REDIS_URL: {server_name(servers.primary)} {problem}")
        for redis in servers.all:
            await refuse_old(redis)
            await refuse_evicting(redis)
            if settings.durable:
                await refuse_volatile(redis)
        await check_format(servers.primary, settings.shards)
        await _refuse_without_scripts(JobQueue(servers))


def refuse_shards(redis_url: str, shards: int) -> None:
    """Raise SettingsError if several shards are asked for on one Redis."""
    if shards > 1 and not is_cluster(redis_url):
        raise SettingsError(
            f"FLOTILLA_SHARDS is {shards}: one Redis has one shard, several are for a cluster "
            "(redis+cluster://)"
        )


async def refuse_old(redis: Any) -> None:
    """Raise SettingsError if this client's server is older than Redis 7.0.

    A server that is away passes, and so does one that hides its INFO.
    """
    try:
        version = str((await redis.info("server")).get("redis_version", ""))
    except StoreError:
        return
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST:
        raise SettingsError(
            f"Redis {server_name(redis)} can't be used: its version is {version}, and Redis or "
            f"Valkey {_OLDEST}.0 or newer is needed"
        )


async def write_problems(queue: JobQueue, who: str) -> tuple[str, list[str]]:
    """What prevents writes: to the primary, and by a script to each group's server; empty: nothing.

    `who` is written. A PING would not detect that the memory of Redis is full.
    """
    primary = queue.servers.primary.set(keys.PROBE, who, px=10_000)
    probes = [_probe(queue, shards[0], who) for shards in queue.servers.groups]
    found = await run_together(*map(_problem, (primary, *probes)))
    return found[0], found[1:]


def _probe(queue: JobQueue, shard: int, who: str) -> Awaitable[Any]:
    return queue.scripts(shard).run("probe", shard, (who,), wait=False)


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


async def _refuse_without_scripts(queue: JobQueue) -> None:
    try:
        for shards in queue.servers.groups:
            try:
                await _probe(queue, shards[0], "start")
            except StoreUnwritable:
                pass  # it may be writable later
            except StoreRefused as error:
                raise SettingsError(
                    f"Redis {server_name(queue.servers.of(shards[0]))} can't be used: scripts "
                    f"have to be able to write and to call PUBSUB there: {error}"
                ) from None
            except StoreError:
                pass
    finally:
        await queue.close()


async def _wrong_kind(redis: Any, *, cluster: bool) -> str:
    """Why the URL is of another kind than the server; empty if it is not, or if that is hidden."""
    try:
        info = await redis.info()
        is_node = bool(info.get("cluster_enabled"))
    except StoreError as error:
        if "cluster support disabled" not in str(error):
            return ""
        info, is_node = {}, False
    if is_node and not cluster:
        return "is a node of a cluster: use redis+cluster:// instead of redis://"
    if cluster and not is_node:
        return "is no cluster: use redis:// instead of redis+cluster://"
    return ""
