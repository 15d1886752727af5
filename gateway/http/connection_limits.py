"""What all connections of clients may take together: time, memory and file descriptors.

A gateway waits for a client that has to send something: the rest of its headers, a request, or its
reading of an answer. Such connections are looked through once a second, by one timer for all.
Connections whose requests are being answered cost nothing here, nor do those between two requests
on which a key was valid once: uvicorn closes these after a few seconds.
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

from gateway.http.auth import Peer
from shared.api.errors import FlotillaError
from shared.platform.logs import RareWarning
from shared.platform.metrics import GatewayMetrics
from shared.platform.settings import Settings

log = logging.getLogger("flotilla.gateway")

_LOOK_S = 1.0
_LINGER_S = 2.0
"""For a refused client to read why."""
_KEPT_BYTES = 2 << 20
"""Of unfinished heads, of one address."""
# The program's own files, and what shared/platform/redis_client.py may open to each server.
_OWN_DESCRIPTORS = 32
_DESCRIPTORS_PER_REDIS = 72


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may; how many these are."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:  # not on Linux
        return now if now != most else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def most_connections(descriptors: int, redis_servers: int) -> int:
    """How many connections of clients there may be, so that Redis' have room beside them."""
    reserve = _OWN_DESCRIPTORS + _DESCRIPTORS_PER_REDIS * redis_servers
    return descriptors - min(reserve, descriptors // 2)


class LimitedConnection(Protocol):
    """What the limits need of a connection (connection.py)."""

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

    def is_idle(self) -> bool:
        """Between two requests."""

    def expire(self) -> None:
        """The deadline has passed: refuse the request or close the connection."""

    def drop(self) -> None:
        """Close the connection without an answer."""


class Connections:
    """The connections of one gateway process."""

    def __init__(self, settings: Settings, metrics: GatewayMetrics, most: int) -> None:
        """`most`: see `most_connections`."""
        self.max_header_bytes = settings.max_header_bytes
        self._timeout_s = settings.header_timeout_s
        self._most_waiting = settings.max_waiting_connections
        self._most = most
        self._metrics = metrics
        self._open: Collection[Any] = ()
        # Those that may be waited for, the oldest first: until a key was valid, and then while a
        # head or a body that nobody wants is unfinished.
        self._watched: dict[LimitedConnection, None] = {}
        self._kept: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._shed_at = 0.0
        self._warn_crowded = RareWarning(log)
        self._warn_full = RareWarning(log)
        metrics.connections.set_function(lambda: len(self._open))
        metrics.connections_limit.set(most)

    def has_room(self, open_connections: Collection[Any]) -> bool:
        """For a connection that has just been accepted and is among these; made, if need be."""
        self._open = open_connections
        if len(open_connections) <= self._most:
            return True
        self._warn_full(
            "%d connections of clients, as many as file descriptors allow: "
            "those that send nothing are closed, then new ones",
            len(open_connections),
        )
        for connection in self._watched:
            if connection.deadline < inf:
                self._drop(connection, "descriptors")
                return True
        return self._shed_idle() > 0

    def _shed_idle(self) -> int:
        """Close connections between two requests; how many there were."""
        now = monotonic()
        if now < self._shed_at:  # not again for each new one: it looks at all of them
            return 0
        self._shed_at = now + _LOOK_S
        idle = [connection for connection in self._open if connection.is_idle()]
        for connection in idle:
            self._drop(connection, "descriptors")
        return len(idle)

    # --- what connections tell ---

    def wait_for(self, connection: LimitedConnection) -> None:
        """The client has to send something now, or to read; nothing new if it had before."""
        if connection.deadline == inf:
            self._watch(connection, self._timeout_s)

    def linger(self, connection: LimitedConnection) -> None:
        """The client has got its last answer."""
        self._watch(connection, _LINGER_S)

    def serve(self, connection: LimitedConnection) -> None:
        """A request has come, with all its headers."""
        connection.deadline = inf
        connection.was_waiting = False
        self._keep(connection, 0)
        if connection.peer.proven:
            self._watched.pop(connection, None)

    def forget(self, connection: LimitedConnection) -> None:
        """It has been closed."""
        connection.deadline = inf
        self._keep(connection, 0)
        self._watched.pop(connection, None)

    def may_keep(self, connection: LimitedConnection, n_bytes: int) -> bool:
        """So many bytes of an unfinished head are kept: whether its address may."""
        self._keep(connection, n_bytes)
        return self._kept[connection.source] <= _KEPT_BYTES

    def count_refused(self, error: FlotillaError) -> None:
        """A client is told this."""
        self._metrics.refused.labels(error.code or error.type).inc()

    def count_closed(self, limit: str) -> None:
        """A client is not told anything."""
        self._metrics.connections_closed.labels(limit).inc()

    def _watch(self, connection: LimitedConnection, seconds: float) -> None:
        connection.deadline = monotonic() + seconds
        self._watched[connection] = None
        if self._timer is None:
            self._timer = connection.loop.call_later(_LOOK_S, self._look, connection.loop)

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

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        waiting: dict[str, list[LimitedConnection]] = {}
        for connection in list(self._watched):
            if connection.deadline == inf:
                if connection.peer.proven:
                    del self._watched[connection]
            elif connection.deadline <= now:
                connection.expire()
            elif not connection.was_waiting:
                # It may have sent all long ago: in a rush, connections are accepted before the
                # first of them is read.
                connection.was_waiting = True
            elif not connection.peer.proven:
                waiting.setdefault(connection.source, []).append(connection)
        for source, connections in waiting.items():
            n_excess = len(connections) - self._most_waiting
            if n_excess > 0:
                self._warn_crowded("%s has %d silent connections", source, len(connections))
            for connection in connections[: max(0, n_excess)]:
                self._drop(connection, "address")
        self._timer = loop.call_later(_LOOK_S, self._look, loop) if self._watched else None
