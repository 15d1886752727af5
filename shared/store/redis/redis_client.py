"""Clients for Redis: how they connect, what times out, and which errors pass by themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from shared.platform.sentinel_url import is_sentinel
from shared.store.redis import sentinel

TIMEOUT_S = 5.0
"""Limit for a reply. A call that timed out may have been executed: scripts may be sent again."""
BLOCK_S = 5.0
"""How long one blocking read waits; its socket timeout is longer."""

_CLOSED = "the handler is closed"
"""In uvloop's error for a write to a closed connection."""

UNAVAILABLE = (RedisConnectionError, RedisTimeoutError, OSError)
"""Errors of a server that can't be reached now; the same call may succeed later."""

__all__ = [
    "BLOCK_S",
    "TIMEOUT_S",
    "UNAVAILABLE",
    "OutOfMemoryError",
    "ReadOnlyError",
    "Redis",
    "RedisConnectionError",
    "RedisError",
    "RedisTimeoutError",
    "ResponseError",
    "connect",
    "connect_blocking",
    "is_wrong_type",
    "parse_url",
    "server_name",
    "unwritable",
]


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """A client for short calls. It never retries: only the caller knows what may be repeated."""
    return Redis.from_pool(_pool(url, max_connections, socket_timeout=TIMEOUT_S))


def connect_blocking(url: str) -> Redis:
    """A client for blocking reads and subscriptions, with a socket timeout above `BLOCK_S`."""
    timeout_s = BLOCK_S + TIMEOUT_S
    pool = _pool(url, 4, socket_timeout=timeout_s, health_check_interval=BLOCK_S)
    return Redis.from_pool(pool)


def _pool(url: str, max_connections: int, **options: Any) -> BlockingConnectionPool:
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    options |= {
        "max_connections": max_connections,
        "timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        # Notices of managed servers. With them on, redis-py hands out connections that the server
        # has closed: one failed call for each of them after a restart.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    pool = (
        sentinel.pool(url, **options)
        if is_sentinel(url)
        else BlockingConnectionPool.from_url(url, **options)
    )
    made_by: Any = pool.connection_class
    pool.connection_class = _raising_connection_errors(made_by)
    return pool


@cache
def _raising_connection_errors(base: Any) -> Any:
    """A class of connections on which a write to a closed connection raises redis' own error.

    uvloop raises a RuntimeError instead of an OSError if the connection was lost before the write,
    and redis-py passes it on.
    """

    class Connection(base):  # type: ignore[misc]
        async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().send_packed_command(*args, **kwargs)
            except RuntimeError as error:
                if _CLOSED not in str(error):
                    raise
                raise RedisConnectionError("Connection to Redis lost") from error

    return Connection


def server_name(redis: Any) -> str:
    """Where a client connects to, for log lines: `host:port/db` or a socket's path; no password."""
    pool = redis.connection_pool
    if isinstance(pool, sentinel.SentinelPool):
        return pool.name
    options = pool.connection_kwargs
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{where}/{options.get('db') or 0}"


def is_wrong_type(reply: object) -> bool:
    """Whether this is the error of a key that holds another type than the command needs."""
    return isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)


def unwritable(error: BaseException) -> bool:
    """Whether Redis refuses writes for now: memory or disk full, loading, or a replica."""
    words = ("OOM", "MISCONF", "READONLY", "LOADING", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")
    if isinstance(error, OutOfMemoryError | ReadOnlyError):
        return True
    # Redis before 7 quotes the error of a script's command: `Error running script ...: -OOM ...`.
    text = str(error)
    return text.startswith(words) or any(f" -{word} " in text for word in words)
