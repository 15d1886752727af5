"""An API key as it is known everywhere but to its owner: without its secret."""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import NamedTuple

from shared.tenants.rate_limits import NO_LIMITS, RateLimits
from shared.tenants.scopes import TENANT_SCOPES, Scope

KEY_PREFIX = "flk_"
MOST_KEYS = 10_000
"""Of a fleet: every gateway holds all of them in memory."""
_SHOWN = 8


class ApiKey(NamedTuple):
    """What a key may do. Times are Unix seconds by Redis' clock."""

    id: str
    """Empty: it stands in the gateway's settings."""
    tenant: str
    scopes: frozenset[Scope] = TENANT_SCOPES
    name: str = ""
    models: tuple[str, ...] = ()
    """The names of models that it may use; empty: any."""
    expires_at: float | None = None
    hint: str = ""
    """The first characters of its secret, for people."""
    created_at: float = 0.0
    created_by: str = ""
    """The tenant of the operator's key that made it."""
    limits: RateLimits = NO_LIMITS
    digest: str = ""
    """Of its secret, in hex; empty: it stands in the gateway's settings."""

    def may_use(self, *names: str) -> bool:
        """Whether it may call the model that has these names."""
        return not self.models or any(name in self.models for name in names)


def new_key_id() -> str:
    """`key_` and 96 random bits."""
    return f"key_{os.urandom(12).hex()}"


def new_secret() -> str:
    """What the owner of a key sends: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: bytes) -> bytes:
    """What Redis and gateways know a key by. A plain hash will do: 256 random bits can't be
    guessed."""
    return hashlib.sha256(secret).digest()


def hint_of(secret: str) -> str:
    """What people see of it."""
    return secret[:_SHOWN]
