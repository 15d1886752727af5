"""Authentication: each API key belongs to a tenant, and has scopes.

Wrong keys are counted and logged by address, and answered late if there are many, so that guessing
is visible and slow. A valid key is never delayed: tenants behind one proxy share its address, and
one of them must not lock out the others. A client with many connections is not slowed down: but for
a few delayed answers, its guesses are refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv6Address, IPv6Network
from time import monotonic
from typing import Any

from gateway.http.known_keys import ANYONE, KnownKeys
from gateway.listen_settings import LOOPBACK
from shared.job.errors import FlotillaError, TooManyWrongKeys, Unauthorized
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope

log = logging.getLogger("flotilla.gateway")

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


def key_of(authorizations: list[bytes], known: KnownKeys) -> ApiKey:
    """The key of a request with these `authorization` headers.

    Raises Unauthorized, and RedisUnavailable.
    """
    if not known.needed:
        return ANYONE
    if len(authorizations) > 1:
        raise Unauthorized(
            "This request has different API keys in `Authorization` and `x-api-key`, or one of "
            "these headers twice: send one key."
        )
    if not authorizations:
        raise Unauthorized(
            "Send your API key as `Authorization: Bearer <key>` or as `x-api-key: <key>`."
        )
    scheme, _, secret = authorizations[0].partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorized("Send your API key as `Authorization: Bearer <key>`.")
    return known.find(secret.strip())


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
        self, known: KnownKeys, wrong_keys_per_minute: int, metrics: GatewayMetrics
    ) -> None:
        self._known = known
        self._wrong_keys = WrongKeys(wrong_keys_per_minute, metrics)

    async def key(self, scope: Any) -> ApiKey:
        """The key of an ASGI request, which its state has from now on.

        Raises Unauthorized (after a delay if there were many wrong keys), TooManyWrongKeys, and
        RedisUnavailable.
        """
        sent = authorizations_in(scope["headers"])
        try:
            key = key_of(sent, self._known)
        except Unauthorized:
            if sent:
                await self._wrong_keys.slow_down((scope.get("client") or ("",))[0])
            raise
        state = scope.setdefault("state", {})
        state["key"], state["tenant"] = key, key.tenant
        peer: Peer | None = state.get(PEER)
        if peer is not None:
            peer.authenticated = True
        return key

    def is_operator(self, scope: Any) -> bool:
        """Whether the key of this request may see the fleet, whatever its route needs."""
        try:
            key = key_of(authorizations_in(scope["headers"]), self._known)
        except FlotillaError:
            return False
        return Scope.ADMIN_READ in key.scopes

    def may_see_all(self, scope: Any) -> bool:
        """Whether a probe gets more than the state: with an operator's key, or without keys if it
        comes from this machine.

        A port that a container publishes is reached from another address than loopback.
        """
        address, _ = scope.get("client") or ("", 0)
        return self.is_operator(scope) and (self._known.needed or address in LOOPBACK)


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
