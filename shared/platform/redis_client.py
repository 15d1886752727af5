"""Connections to Redis: one way to make them, with limits on every wait."""

from __future__ import annotations

import contextlib
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

TIMEOUT_S = 5.0
"""For a reply. A call that hit it may have been carried out: all scripts may be sent again."""
BLOCK_S = 5.0
"""How long one blocking read waits; its socket waits longer."""

UNAVAILABLE = (RedisConnectionError, RedisTimeoutError, OSError)
"""Redis can't be reached now; the same call may go through later."""

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
    "unwritable",
    "weaknesses",
]


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """A client for short calls. Nothing is retried under the hood: callers know what may be."""
    return Redis.from_pool(_pool(url, max_connections, socket_timeout=TIMEOUT_S))


def connect_blocking(url: str) -> Redis:
    """A client for blocking reads and subscriptions: no socket timeout shorter than their wait."""
    timeout_s = BLOCK_S + TIMEOUT_S
    pool = _pool(url, 4, socket_timeout=timeout_s, health_check_interval=BLOCK_S)
    return Redis.from_pool(pool)


def _pool(url: str, max_connections: int, **options: Any) -> BlockingConnectionPool:
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    return BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        # Notices of a managed Redis. With them redis-py hands out a connection that has something
        # to read, be it that the server closed it: a failed call for each after a restart.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **options,
    )


async def weaknesses(redis: Redis) -> list[str]:
    """How this Redis could lose jobs by its settings; empty where it says nothing of them.

    What it may evict is another matter (eviction.py).
    """
    settings: Any = {}
    with contextlib.suppress(ResponseError):  # managed ones keep CONFIG to themselves
        settings = await redis.config_get("appendonly")
    if settings.get(b"appendonly", b"yes") == b"no":
        return ["appendonly is no: jobs do not survive its end; set yes"]
    return []


def unwritable(error: BaseException) -> bool:
    """Redis answers but refuses writes for now: memory or disk full, loading, or a replica."""
    words = ("OOM", "MISCONF", "READONLY", "LOADING", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")
    if isinstance(error, OutOfMemoryError | ReadOnlyError):
        return True
    # Redis before 7 quotes what a command of a script said: `Error running script ...: -OOM ...`.
    text = str(error)
    return text.startswith(words) or any(f" -{word} " in text for word in words)
