"""An API key as it is known everywhere but to its owner: without its secret."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from functools import lru_cache
from typing import NamedTuple

from shared.tenants.rate_limits import NO_LIMITS, RateLimits, limits_of
from shared.tenants.scopes import TENANT_SCOPES, Scope

KEY_PREFIX = "flk_"
MOST_KEYS = 10_000
"""Of a fleet: every gateway holds all of them in memory."""
_SHOWN = 8
_ID = re.compile(r"key_[0-9a-f]{24}")


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

    def may_use(self, *names: str) -> bool:
        """Whether it may call the model that has these names."""
        return not self.models or any(name in self.models for name in names)

    def packed(self) -> str:
        """As JSON, for Redis."""
        return json.dumps(self._asdict() | {"scopes": sorted(self.scopes)})


@lru_cache(MOST_KEYS)
def parse_key(packed: bytes) -> ApiKey:
    """The key in `packed`. Raises ValueError, TypeError and LookupError if it is malformed.

    Cached: a change of one key has all be read.
    """
    fields = json.loads(packed)
    expires_at = fields["expires_at"]
    return ApiKey(
        id=str(fields["id"]),
        tenant=str(fields["tenant"]),
        scopes=frozenset(map(Scope, fields["scopes"])),
        name=str(fields["name"]),
        models=tuple(map(str, fields["models"])),
        expires_at=None if expires_at is None else float(expires_at),
        hint=str(fields["hint"]),
        created_at=float(fields["created_at"]),
        created_by=str(fields["created_by"]),
        limits=limits_of(fields.get("limits", ())),
    )


def new_key_id() -> str:
    """`key_` and 96 random bits."""
    return f"key_{os.urandom(12).hex()}"


def is_key_id(text: str) -> bool:
    """Whether this can be the id of a key."""
    return _ID.fullmatch(text) is not None


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
