"""Limits for all client connections together: time and file descriptors.

A connection has a deadline while its client has to act: to send a request or the rest of its
headers, or to read its answer. One timer checks all deadlines once a second. Connections whose
clients read their answers as they come have none, nor do those between two requests that have sent
a valid key: uvicorn closes these after `idle_connection_s`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Collection
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.gateway_settings import GatewaySettings
from shared.job.errors import FlotillaError
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics

if TYPE_CHECKING:
    from gateway.http.connection import Connection

log = logging.getLogger("flotilla.gateway")

_CHECK_S = 1.0
_LINGER_S = 2.0
"""Time for a refused client to read its answer."""
# Files of the process itself, and its connections to each server of Redis.
_OWN_DESCRIPTORS = 64
_DESCRIPTORS_PER_REDIS = 8


def raise_descriptor_limit() -> int:
    """Raise this process' limit of open files to the hard limit; returns the new limit."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:  # not on Linux
        return now if now != most else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def most_connections(descriptors: int, redis_servers: int) -> int:
    """How many client connections fit into `descriptors`, beside those to Redis."""
    reserve = _OWN_DESCRIPTORS + _DESCRIPTORS_PER_REDIS * redis_servers
    return descriptors - min(reserve, descriptors // 2)


class Connections:
    """The connections of one gateway process."""

    def __init__(self, settings: GatewaySettings, metrics: GatewayMetrics, most: int) -> None:
        """`most`: see `most_connections`."""
        self._timeout_s = settings.header_timeout_s
        self._write_timeout_s = settings.write_timeout_s
        self._most = most
        self._metrics = metrics
        self._open: Collection[Any] = ()
        self._watched: set[Connection] = set()  # those that have a deadline
        self._timer: asyncio.TimerHandle | None = None
        self._warn_full = RareWarning(log)
        metrics.connections.set_function(lambda: len(self._open))

    def has_room(self, open_connections: Collection[Any]) -> bool:
        """Whether a connection that was just accepted may stay; `open_connections` includes it."""
        self._open = open_connections
        if len(open_connections) <= self._most:
            return True
        self._warn_full(
            "%d client connections, the limit of file descriptors: refusing new ones",
            len(open_connections),
        )
        return False

    # --- called by connections ---

    def wait_for(self, connection: Connection) -> None:
        """The client has to send or read something now. A deadline that it has already stays."""
        if connection.deadline == inf:
            self._watch(connection, self._timeout_s)

    def wait_for_reader(self, connection: Connection) -> None:
        """The client has to read some of its answer now."""
        seconds = self._write_timeout_s
        if not connection.peer.authenticated:
            seconds = min(seconds, self._timeout_s)
        self._watch(connection, seconds)

    def linger(self, connection: Connection) -> None:
        """The client was refused and gets no other answer."""
        self._watch(connection, _LINGER_S)

    def serve(self, connection: Connection) -> None:
        """The headers of a request are complete, so its answer begins."""
        if connection.write_paused():
            return  # by an earlier answer
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """The connection has no deadline now, or is closed."""
        connection.deadline = inf
        self._watched.discard(connection)

    def count_refused(self, error: FlotillaError) -> None:
        """Count a request that a connection answers itself."""
        self._metrics.refused.labels(error.code or error.type).inc()

    def count_closed(self, limit: str) -> None:
        """Count a connection that is closed without an answer because of this limit."""
        self._metrics.connections_closed.labels(limit).inc()

    def _watch(self, connection: Connection, seconds: float) -> None:
        connection.deadline = monotonic() + seconds
        self._watched.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(_CHECK_S, self._check, connection.loop)

    # --- once a second ---

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        for connection in list(self._watched):
            if connection.deadline <= now:
                connection.expire()
        self._timer = loop.call_later(_CHECK_S, self._check, loop) if self._watched else None
