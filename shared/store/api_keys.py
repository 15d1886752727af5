"""API keys, and the limits of tenants. A key is known by the digest of its secret alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydantic import TypeAdapter

from shared.job.errors import NotFound, QuotaExceeded
from shared.platform.malformed import MalformedValues
from shared.store import keys
from shared.store.documents import Documents, Kind, LimitReached
from shared.store.queue import Queue
from shared.tenants.api_key import MOST_KEYS, ApiKey
from shared.tenants.rate_limits import RateLimits

_KEYS = Kind("key", TypeAdapter(ApiKey), channel=keys.API_KEYS_CHANNEL)
_LIMITS = Kind("limits", TypeAdapter(RateLimits), channel=keys.API_KEYS_CHANNEL)


class StoredKeys(NamedTuple):
    """All keys that are stored."""

    version: bytes
    """As it was before they were read; empty: there was never a key."""
    keys: dict[bytes, ApiKey]
    """By the digests of their secrets."""
    tenant_limits: dict[str, RateLimits]
    """Tenant -> the limits of all its keys together."""


class KeyRecords:
    """Reads and changes them. Methods raise StoreError."""

    def __init__(self, queue: Queue, malformed: MalformedValues | None = None) -> None:
        self.keys = Documents(queue, _KEYS, malformed)
        self.limits = Documents(queue, _LIMITS, malformed)

    async def read(self) -> StoredKeys:
        """All keys."""
        version = await self.keys.version()  # first: a change in between is found at the next look
        found = (await self.keys.all()).values()
        by_digest = {bytes.fromhex(key.digest): key for key in found}
        return StoredKeys(version, by_digest, await self.limits.all())

    async def list(self, tenant: str, after: str, limit: int) -> tuple[list[ApiKey], bool]:
        """At most `limit` keys of a tenant (empty: of all) behind `after`, newest first, and
        whether there are more.

        Raises NotFound if there is no key `after`, and none was revoked lately.
        """
        page = await self.keys.page(after, limit, wanted=lambda key: tenant in ("", key.tenant))
        if page is None:
            raise no_such_key(after)
        return page

    async def create(self, key: ApiKey) -> None:
        """Store a new key. Raises QuotaExceeded."""
        try:
            await self.keys.add(key.id, key, at=key.created_at, most=MOST_KEYS)
        except LimitReached:
            raise QuotaExceeded(
                f"There are {MOST_KEYS} API keys, as many as may be; revoke some."
            ) from None

    async def change(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        """Store what `change` makes of a key, and return it. Raises NotFound."""
        changed = await self.keys.change(key_id, change)
        if changed is None:
            raise no_such_key(key_id)
        return changed

    async def revoke(self, key_id: str) -> ApiKey:
        """Delete a key, and return it. Raises NotFound."""
        revoked = await self.keys.delete(key_id, lambda _: True)
        if revoked is None:
            raise no_such_key(key_id)
        return revoked

    async def limit_tenant(self, tenant: str, limits: RateLimits) -> None:
        """Set the limits of all keys of a tenant together. Raises QuotaExceeded."""
        if not any(limits):
            await self.limits.delete(tenant, lambda _: True)
            return
        try:
            await self.limits.change(tenant, lambda _: limits, new=limits, most=MOST_KEYS)
        except LimitReached:
            raise QuotaExceeded(f"There are {MOST_KEYS} tenants with limits already.") from None


def no_such_key(key_id: str) -> NotFound:
    """The answer for a key that is unknown or revoked."""
    return NotFound(f"There is no API key {key_id[:64]!r}.")
