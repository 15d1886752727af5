"""Limits for all client connections together: time, memory and file descriptors.

A connection has a deadline while its client has to act: to send a request or the rest of its
headers, or to read its answer. One timer checks all deadlines once a second. Connections whose
clients read their answers as they come have none, nor do those between two requests that have sent
a valid key: uvicorn closes these after `idle_connection_s`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Collection
from math import inf
from time import monotonic
from typing import Any, Protocol

from gateway.gateway_settings import GatewaySettings
from gateway.http.auth import Peer
from shared.job.errors import FlotillaError
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics

log = logging.getLogger("flotilla.gateway")

_CHECK_S = 1.0
_LINGER_S = 2.0
"""Time for a refused client to read its answer."""
_KEPT_BYTES = 2 << 20
"""Bytes of unfinished heads that one address may have."""
# Files of the process itself, and connections of shared/store/redis/redis_client.py to each server.
_OWN_DESCRIPTORS = 32
_DESCRIPTORS_PER_REDIS = 72


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


class LimitedConnection(Protocol):
    """The part of a connection that the limits use (connection.py)."""

    source: str
    """The client's address, see `auth.source_of`."""
    peer: Peer
    loop: asyncio.AbstractEventLoop
    deadline: float
    """Monotonic time until which the client may take to send or read; infinite: no limit now."""
    was_waiting: bool
    """It had a deadline already at the last check."""
    kept_bytes: int
    """Bytes of an unfinished head that are counted for its address."""

    def write_paused(self) -> bool:
        """The client has to read before more of its answer is written."""

    def is_idle(self) -> bool:
        """Between two requests."""

    def expire(self) -> None:
        """The deadline has passed: refuse the request or close the connection."""

    def drop(self) -> None:
        """Close the connection without an answer."""


class Connections:
    """The connections of one gateway process."""

    def __init__(self, settings: GatewaySettings, metrics: GatewayMetrics, most: int) -> None:
        """`most`: see `most_connections`."""
        self.max_header_bytes = settings.max_header_bytes
        self._timeout_s = settings.header_timeout_s
        self._write_timeout_s = settings.write_timeout_s
        self._most_waiting = settings.max_waiting_connections
        self._most = most
        self._metrics = metrics
        self._open: Collection[Any] = ()
        # Connections that may have a deadline, the oldest first.
        self._watched: dict[LimitedConnection, None] = {}
        self._kept: Counter[str] = Counter()  # bytes of unfinished heads by address
        self._timer: asyncio.TimerHandle | None = None
        self._shed_at = 0.0
        self._warn_crowded = RareWarning(log)
        self._warn_full = RareWarning(log)
        metrics.connections.set_function(lambda: len(self._open))
        metrics.connections_limit.set(most)

    def has_room(self, open_connections: Collection[Any]) -> bool:
        """Whether a connection that was just accepted may stay; `open_connections` includes it.

        Closes others for it, if need be: first silent ones, then those between two requests.
        """
        self._open = open_connections
        if len(open_connections) <= self._most:
            return True
        self._warn_full(
            "%d client connections, the limit of file descriptors: closing silent ones, and "
            "refusing new ones if there are none",
            len(open_connections),
        )
        for connection in self._watched:
            if connection.deadline < inf and not connection.peer.authenticated:
                self._drop(connection, "descriptors")
                return True
        return self._shed_idle() > 0

    def _shed_idle(self) -> int:
        """Close connections between two requests; returns how many."""
        now = monotonic()
        if now < self._shed_at:  # at most once a second, because it checks all connections
            return 0
        self._shed_at = now + _CHECK_S
        idle = [connection for connection in self._open if connection.is_idle()]
        for connection in idle:
            self._drop(connection, "descriptors")
        return len(idle)

    # --- called by connections ---

    def wait_for(self, connection: LimitedConnection) -> None:
        """The client has to send or read something now. A deadline that it has already stays."""
        if connection.deadline == inf:
            self._watch(connection, self._timeout_s)

    def wait_for_reader(self, connection: LimitedConnection) -> None:
        """The client has to read some of its answer now."""
        seconds = self._write_timeout_s
        if not connection.peer.authenticated:
            seconds = min(seconds, self._timeout_s)
        self._watch(connection, seconds)

    def linger(self, connection: LimitedConnection) -> None:
        """The client was refused and gets no other answer."""
        self._watch(connection, _LINGER_S)

    def serve(self, connection: LimitedConnection) -> None:
        """The headers of a request are complete, so its answer begins."""
        self._keep(connection, 0)
        if connection.write_paused():
            return  # by an earlier answer
        connection.deadline = inf
        connection.was_waiting = False
        if connection.peer.authenticated:
            self._watched.pop(connection, None)

    def forget(self, connection: LimitedConnection) -> None:
        """The connection is closed."""
        connection.deadline = inf
        self._keep(connection, 0)
        self._watched.pop(connection, None)

    def may_keep(self, connection: LimitedConnection, n_bytes: int) -> bool:
        """Count `n_bytes` of an unfinished head; whether its address is within the limit."""
        self._keep(connection, n_bytes)
        return self._kept[connection.source] <= _KEPT_BYTES

    def count_refused(self, error: FlotillaError) -> None:
        """Count a request that a connection answers itself."""
        self._metrics.refused.labels(error.code or error.type).inc()

    def count_closed(self, limit: str) -> None:
        """Count a connection that is closed without an answer because of this limit."""
        self._metrics.connections_closed.labels(limit).inc()

    def _watch(self, connection: LimitedConnection, seconds: float) -> None:
        connection.deadline = monotonic() + seconds
        self._watched[connection] = None
        if self._timer is None:
            self._timer = connection.loop.call_later(_CHECK_S, self._check, connection.loop)

    def _keep(self, connection: LimitedConnection, n_bytes: int) -> None:
        if connection.kept_bytes == n_bytes:
            return
        self._kept[connection.source] += n_bytes - connection.kept_bytes
        connection.kept_bytes = n_bytes
        if not self._kept[connection.source]:
            del self._kept[connection.source]

    def _drop(self, connection: LimitedConnection, limit: str) -> None:
        self.count_closed(limit)
        connection.drop()

    # --- once a second ---

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        waiting: dict[str, list[LimitedConnection]] = {}
        for connection in list(self._watched):
            if connection.deadline == inf:
                if connection.peer.authenticated:
                    del self._watched[connection]
            elif connection.deadline <= now:
                connection.expire()
            elif not connection.was_waiting:
                # Its request may have arrived: under load, many connections are accepted before
                # the first of them is read.
                connection.was_waiting = True
            elif not connection.peer.authenticated:
                waiting.setdefault(connection.source, []).append(connection)
        for source, connections in waiting.items():
            n_excess = len(connections) - self._most_waiting
            if n_excess > 0:
                self._warn_crowded(
                    "%s has %d silent connections: closing the oldest", source, len(connections)
                )
            for connection in connections[: max(0, n_excess)]:
                self._drop(connection, "address")
        self._timer = loop.call_later(_CHECK_S, self._check, loop) if self._watched else None
