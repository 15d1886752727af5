"""Authentication: each API key belongs to a tenant. Keys are compared as SHA-256 hashes.

Wrong keys are counted and logged by address, and answered late if there are many, so that guessing
is visible and slow. A valid key is never delayed: tenants behind one proxy share its address, and
one of them must not lock out the others. A client with many connections is not slowed down: but for
a few delayed answers, its guesses are refused at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, IPv6Network
from time import monotonic
from typing import Any

from gateway.listen_settings import LOOPBACK
from shared.job.errors import AdminOnly, TooManyWrongKeys, Unauthorized
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics

log = logging.getLogger("flotilla.gateway")

DEFAULT_TENANT = "default"
"""The tenant of all requests if no keys are configured."""

PEER = "peer"
"""The key of a request's `state` that holds the Peer of its connection."""

_WINDOW_S = 60.0
_DELAY_S = 1.0
# Each delayed answer holds a connection and a task.
_MAX_DELAYED = 64
_MAX_DELAYED_PER_SOURCE = 16
_MAX_SOURCES = 4096


class Peer:
    """The client of a connection."""

    __slots__ = ("authenticated",)

    def __init__(self) -> None:
        self.authenticated = False
        """A request on this connection had a valid key, or no keys are configured."""


def tenant_of(authorizations: list[bytes], tenants: Mapping[str, str]) -> str:
    """The tenant of a request with these `authorization` headers. Raises Unauthorized.

    `tenants` maps the SHA-256 of a key (hex) to its tenant. The time of looking up a hash does not
    depend on how much of a key is right.
    """
    if not tenants:
        return DEFAULT_TENANT
    if len(authorizations) != 1:
        raise Unauthorized(
            "Send your API key as `Authorization: Bearer <key>` or as `x-api-key: <key>`, once."
        )
    scheme, _, key = authorizations[0].partition(b" ")
    tenant = tenants.get(_digest(key))
    if scheme.lower() != b"bearer" or tenant is None:
        raise Unauthorized(
            "This API key is unknown. Keys are configured with FLOTILLA_API_KEYS on the gateway."
        )
    return tenant


def authorizations_in(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The values of `authorization` in a request's headers.

    `x-api-key`, which Anthropic's clients send, counts as a bearer token; the same key may be sent
    both ways.
    """
    found, sent = [], []
    for name, value in headers:
        if name == b"authorization":
            found.append(value)
        elif name == b"x-api-key":
            sent.append(b"Bearer " + value)
    return found + [each for each in sent if each not in found] if sent else found


def _digest(key: bytes) -> str:
    return hashlib.sha256(key.strip()).hexdigest()


def source_of(address: str) -> str:
    """The network that is counted as one client: an IPv4 address, or a /64 of IPv6."""
    if ":" not in address:
        return address
    ip = IPv6Address(address)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((int(ip) >> 64 << 64, 64)))


class Authenticator:
    """Checks the key of each request."""

    def __init__(
        self,
        tenants: Mapping[str, str],
        wrong_keys_per_minute: int,
        metrics: GatewayMetrics,
        admins: frozenset[str] = frozenset(),
    ) -> None:
        """`admins`: the SHA-256 of each operator's key, which are among those of `tenants`."""
        self._tenants = tenants
        self._admins = admins
        self._wrong_keys = WrongKeys(wrong_keys_per_minute, metrics)

    async def tenant(self, scope: Any) -> str:
        """The tenant of an ASGI request.

        Raises Unauthorized (after a delay if there were many wrong keys) and TooManyWrongKeys.
        """
        keys = authorizations_in(scope["headers"])
        try:
            tenant = tenant_of(keys, self._tenants)
        except Unauthorized:
            if keys:
                await self._wrong_keys.slow_down((scope.get("client") or ("",))[0])
            raise
        peer: Peer | None = scope.get("state", {}).get(PEER)
        if peer is not None:
            peer.authenticated = True
        return tenant

    def check_admin(self, scope: Any) -> None:
        """Raises AdminOnly unless the key of this request, which is valid, is an operator's.

        Where no keys are configured every client is an operator.
        """
        if not self.is_operator(scope):
            raise AdminOnly("This route needs one of the keys in FLOTILLA_ADMIN_KEYS.")

    def is_operator(self, scope: Any) -> bool:
        """Whether the key of this request is an operator's."""
        if not self._tenants:
            return True
        keys = authorizations_in(scope["headers"])
        return len(keys) == 1 and _digest(keys[0].partition(b" ")[2]) in self._admins

    def may_see_all(self, scope: Any) -> bool:
        """Whether a probe gets more than the state: with an operator's key, or without keys if it
        comes from this machine.

        A port that a container publishes is reached from another address than loopback.
        """
        address, _ = scope.get("client") or ("", 0)
        return self.is_operator(scope) and (bool(self._tenants) or address in LOOPBACK)


class _Source:
    __slots__ = ("delayed", "since", "wrong")

    def __init__(self, now: float) -> None:
        self.since = now
        self.wrong = 0
        self.delayed = 0


class WrongKeys:
    """Counts recent wrong keys by address. The number of addresses is bounded."""

    def __init__(self, per_minute: int, metrics: GatewayMetrics) -> None:
        self._per_minute = per_minute
        self._metrics = metrics
        self._sources: OrderedDict[str, _Source] = OrderedDict()  # most recent last
        self._delayed = 0
        self._warn = RareWarning(log)

    async def slow_down(self, address: str) -> None:
        """Count a wrong key and wait until it may be answered. Raises TooManyWrongKeys."""
        name = source_of(address)
        source = self._counted(name, monotonic())
        if source.wrong <= self._per_minute:
            self._metrics.wrong_keys.labels("at_once").inc()
            return
        seconds = monotonic() - source.since
        self._warn("%d wrong API keys from %s in %.0f s", source.wrong, name, seconds)
        if source.delayed >= _MAX_DELAYED_PER_SOURCE or self._delayed >= _MAX_DELAYED:
            self._metrics.wrong_keys.labels("refused").inc()
            raise TooManyWrongKeys(
                "Too many wrong API keys were sent from this address; wait before you try again."
            )
        self._metrics.wrong_keys.labels("delayed").inc()
        source.delayed += 1
        self._delayed += 1
        try:
            await asyncio.sleep(_DELAY_S)
        finally:
            source.delayed -= 1
            self._delayed -= 1

    def _counted(self, name: str, now: float) -> _Source:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _Source(now)
            if len(self._sources) > _MAX_SOURCES:
                self._sources.popitem(last=False)
        elif now - source.since > _WINDOW_S:
            source.since, source.wrong = now, 0
        self._sources.move_to_end(name)
        source.wrong += 1
        return source
