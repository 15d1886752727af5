"""The API keys that a gateway knows: those of its settings, and its copy of those in Redis.

A key is looked up by a digest, so the time that takes does not depend on how much of a key is
right. No request asks Redis (core/key_refresh.py keeps the copy up to date).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import MappingProxyType

from shared.job.errors import RedisUnavailable, Unauthorized
from shared.tenants.api_key import KEY_PREFIX, ApiKey, digest_of
from shared.tenants.rate_limits import NO_LIMITS, Limited, RateLimits, limited_by
from shared.tenants.scopes import ALL_SCOPES, TENANT_SCOPES, Scope
from shared.tenants.tenant import DEFAULT_TENANT, Tenant, tenants_with

ANYONE = ApiKey("", DEFAULT_TENANT, ALL_SCOPES)
"""Of every request where no keys are configured."""
_MADE = KEY_PREFIX.encode()
_FRESH_S = 2.0
"""With an older copy, a key that is not in it may have been made since."""


class KnownKeys:
    """Without keys in the settings none are needed, and those in Redis are not used: else all would
    get in if Redis lost them."""

    def __init__(
        self,
        tenants: Mapping[str, str],
        admins: frozenset[str] = frozenset(),
        without_redis_s: float = 60.0,
        with_priority: Collection[str] = (),
    ) -> None:
        """`tenants`: SHA-256 (hex) of each key in the settings -> its tenant; `admins`: those of
        operators' keys. `without_redis_s`: how long the copy counts if Redis is away.
        `with_priority`: tenants whose keys in the settings have the scope `priority`."""

        def scopes(digest: str, tenant: str) -> frozenset[Scope]:
            if digest in admins:
                return ALL_SCOPES
            return TENANT_SCOPES | {Scope.PRIORITY} if tenant in with_priority else TENANT_SCOPES

        self._seeds = {
            bytes.fromhex(digest): ApiKey("", tenant, scopes(digest, tenant))
            for digest, tenant in tenants.items()
        }
        self._without_redis_s = without_redis_s
        self._stored: Mapping[bytes, ApiKey] = {}
        self.tenant_limits: Mapping[str, RateLimits] = {}
        """Tenant -> the limits of all its keys together."""
        self._checked_at = float("-inf")  # on the monotonic clock
        self.tenants = self._tenants()

    @property
    def needed(self) -> bool:
        """Whether requests need a key."""
        return bool(self._seeds)

    def replace(
        self,
        stored: Mapping[bytes, ApiKey],
        tenant_limits: Mapping[str, RateLimits] = MappingProxyType({}),
    ) -> None:
        """Use these in place of those that were in Redis before."""
        self._stored = stored
        self.tenant_limits = tenant_limits
        self.tenants = self._tenants()

    def limits_of(self, key: ApiKey) -> tuple[Limited, ...]:
        """The limits of a key and of its tenant; empty if there are none."""
        of_tenant = self.tenant_limits.get(key.tenant, NO_LIMITS)
        if key.limits == NO_LIMITS == of_tenant:
            return ()
        return limited_by(key.id, key.limits, key.tenant, of_tenant)

    def checked(self, at: float) -> None:
        """The copy was compared with Redis, at this time of the monotonic clock."""
        self._checked_at = at

    def find(self, secret: bytes) -> ApiKey:
        """The key with this secret. Raises Unauthorized, and RedisUnavailable."""
        digest = digest_of(secret)
        key = self._stored.get(digest)
        if key is not None:
            self._check_age(self._without_redis_s)
            if key.expires_at is not None and key.expires_at <= time.time():
                raise Unauthorized("This API key has expired.")
            return key
        key = self._seeds.get(digest)
        if key is None:
            if secret.startswith(_MADE):
                self._check_age(_FRESH_S)
            raise Unauthorized("This API key is unknown, or it was revoked.")
        return key

    def _check_age(self, most_s: float) -> None:
        if time.monotonic() - self._checked_at > most_s:
            raise RedisUnavailable("API keys can't be checked now, as Redis is away; try again.")

    def _tenants(self) -> tuple[Tenant, ...]:
        if not self._seeds:
            return (Tenant(DEFAULT_TENANT, 0, operator=True),)
        return tenants_with((*self._seeds.values(), *self._stored.values()))
