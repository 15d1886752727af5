"""Clients for Redis: how they connect, and what times out. They raise the store's errors."""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from shared.platform.cluster_url import is_cluster
from shared.platform.sentinel_url import is_sentinel
from shared.store.redis import sentinel
from shared.store.redis.cluster import FLEET_TAG, SlotMap, SlotPool
from shared.store.redis.store_errors import store_error, store_errors

TIMEOUT_S = 5.0
"""Limit for a reply. A call that timed out may have been executed: scripts may be sent again."""
BLOCK_S = 5.0
"""How long one blocking read waits."""

__all__ = [
    "BLOCK_S",
    "TIMEOUT_S",
    "connect",
    "connect_slot",
    "parse_url",
    "server_name",
    "slot_map",
]


def connect(url: str, *, max_connections: int = 64) -> Any:
    """A client for short calls; of a cluster, of the node that has what belongs to no shard. It
    never retries: only the caller knows what may be repeated.

    redis-py types every reply as bytes or str; ours are bytes.
    """
    if is_cluster(url):
        return connect_slot(slot_map(url), FLEET_TAG, max_connections=max_connections)
    options = _options(max_connections)
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    make = sentinel.pool if is_sentinel(url) else BlockingConnectionPool.from_url
    return _Client.from_pool(make(url, **options))


def slot_map(url: str) -> SlotMap:
    """The map of the slots of a cluster. Raises ValueError if its URL is wrong."""
    return SlotMap(url, **_COMMON)


def connect_slot(slots: SlotMap, tag: str, *, max_connections: int = 64) -> Any:
    """As `connect`: a client of the node that has the slot of this hash tag."""
    options = _options(max_connections) | {"socket_keepalive": True}
    return _Client.from_pool(SlotPool(slots, tag, **options))


class _Client(Redis):
    """Raises the store's errors."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with store_errors():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(Pipeline):
    """Raises the store's errors; with `raise_on_error` off, StoreRefused takes the place of the
    reply, and others are raised all the same."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        with store_errors():
            replies = await super().execute(raise_on_error)
            for index, reply in enumerate(replies):
                if isinstance(reply, ResponseError):
                    replies[index] = store_error(reply)
                elif isinstance(reply, RedisError):
                    raise reply
        return replies


_COMMON = {
    "retry": Retry(NoBackoff(), 0),
    # Notices of managed servers. With them on, redis-py hands out connections that the server
    # has closed: one failed call for each of them after a restart.
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    # Without it redis-py reads its version from the disk for each connection, at ten times the
    # cost of an attempt that is refused.
    "driver_info": DriverInfo(),
}


def _options(max_connections: int) -> dict[str, Any]:
    return _COMMON | {
        "max_connections": max_connections,
        "timeout": TIMEOUT_S,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
    }


def server_name(redis: Any) -> str:
    """Where a client connects to, for log lines: `host:port/db` or a socket's path; no password."""
    pool = redis.connection_pool
    if isinstance(pool, sentinel.SentinelPool | SlotPool):
        return pool.name
    options = pool.connection_kwargs
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{where}/{options.get('db') or 0}"
