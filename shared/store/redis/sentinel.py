"""Connection pools of a Redis behind Sentinel.

Each new connection asks the Sentinels for the master, so after a failover the connections that
were lost are made anew to its successor.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from shared.platform.sentinel_url import TLS_OPTIONS, parse


class SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the present master; a caller waits while all are in use."""

    name = ""
    """Of the service, for log lines."""

    async def aclose(self) -> None:
        """Close these connections, and those to the Sentinels."""
        await super().aclose()
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def pool(url: str, **options: Any) -> SentinelPool:
    """A pool for this URL; `options` are those of redis-py's BlockingConnectionPool."""
    parts = parse(url)
    limits = {
        name: options[name]
        for name in ("socket_timeout", "socket_connect_timeout", "retry", "socket_keepalive")
        if name in options
    }
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        parts.sentinels,
        sentinel_kwargs=limits
        | {
            "username": parts.options.get("sentinel_username"),
            "password": parts.options.get("sentinel_password"),
        },
    )
    tls = {name: value for name, value in parts.options.items() if name in TLS_OPTIONS}
    made = SentinelPool(  # type: ignore[no-untyped-call]
        parts.service,
        sentinel,
        db=parts.db,
        username=parts.username,
        password=parts.password,
        ssl=parts.tls,
        **tls,
        **options,
    )
    made.name = parts.name
    return made
