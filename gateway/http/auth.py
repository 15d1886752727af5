"""Authentication: each API key belongs to a tenant, and has scopes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.http.known_keys import ANYONE, KnownKeys
from gateway.listen_settings import LOOPBACK
from shared.job.errors import FlotillaError, Unauthorized
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope

PEER = "peer"
"""The key of a request's `state` that holds the Peer of its connection."""


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


class Authenticator:
    """Checks the key of each request."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known

    def key(self, scope: Any) -> ApiKey:
        """The key of an ASGI request, which its state has from now on.

        Raises Unauthorized, and RedisUnavailable.
        """
        key = key_of(authorizations_in(scope["headers"]), self._known)
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
