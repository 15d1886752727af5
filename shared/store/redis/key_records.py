"""API keys in Redis, by the digests of their secrets, and the limits of tenants, by `tenant:` and
the tenant. They lie in the first shard, as batches do.

The version is another random word with each change, not a number: after a failover that has lost
changes, a number could be reached again with other keys.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shared.job.errors import QuotaExceeded
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.servers import Servers
from shared.store.redis.subscription import Subscription
from shared.tenants.api_key import MOST_KEYS, ApiKey, parse_key
from shared.tenants.rate_limits import RateLimits, limits_of

SHARD = 0

_TENANT = b"tenant:"
"""A digest, 32 random bytes, begins with these seven in one of 2^56 keys."""

_GONE_S = 3600
"""For so long a list of keys goes on behind one that was revoked."""

OnMalformed = Callable[[bytes, Exception], None]


class StoredKeys(NamedTuple):
    """All keys that are stored."""

    version: bytes
    """As it was before they were read; empty: there was never a key."""
    records: Mapping[bytes, bytes]
    """Digest -> a packed key; `tenant:<tenant>` -> its limits as a JSON array."""

    def keys(self, on_malformed: OnMalformed = lambda digest, error: None) -> dict[bytes, ApiKey]:
        """Digest -> key, without those that can't be read."""
        found = {}
        for digest, packed in self.records.items():
            if digest.startswith(_TENANT):
                continue
            try:
                found[digest] = parse_key(packed)
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                on_malformed(digest, error)
        return found

    def tenant_limits(
        self, on_malformed: OnMalformed = lambda name, error: None
    ) -> dict[str, RateLimits]:
        """Tenant -> the limits of all its keys together, without those that can't be read."""
        found = {}
        for name, packed in self.records.items():
            if name.startswith(_TENANT):
                try:
                    found[name[len(_TENANT) :].decode()] = limits_of(json.loads(packed))
                except (ValueError, TypeError, RecursionError) as error:
                    on_malformed(name, error)
        return found


class KeyRecords:
    """Reads and changes them. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def version(self) -> bytes:
        """Changes with each change of a key."""
        version: bytes | None = await self._redis.get(keys.first(keys.API_KEYS_VERSION))
        return version or b""

    async def read(self) -> StoredKeys:
        """All keys."""
        version = await self.version()  # first: a change in between is found at the next look
        return StoredKeys(version, await self._redis.hgetall(keys.first(keys.API_KEYS)))

    async def create(self, digest: bytes, key: ApiKey) -> None:
        """Store a new key. Raises QuotaExceeded."""
        if await self._change(b"", digest, key.packed()) < 0:
            raise QuotaExceeded(f"There are {MOST_KEYS} API keys, as many as may be; revoke some.")

    async def replace(self, before: bytes, digest: bytes, key: ApiKey) -> bool:
        """Store a key under another digest; False if it was not there under the one before."""
        return await self._change(before, digest, key.packed()) > 0

    async def revoke(self, digest: bytes, key: ApiKey) -> bool:
        """Delete a key; False if it was not there."""
        place = keys.first(keys.GONE, key.id)
        await self._redis.set(place, repr(key.created_at), ex=_GONE_S)
        return await self._change(digest, b"", "") > 0

    async def place_of(self, key_id: str) -> float | None:
        """When a key was made that was revoked lately; None: it was not."""
        place = await self._redis.get(keys.first(keys.GONE, key_id))
        return None if place is None else float(place)

    async def limit_tenant(self, tenant: str, limits: RateLimits) -> None:
        """Set the limits of all keys of a tenant together. Raises QuotaExceeded."""
        name = _TENANT + tenant.encode()
        if not any(limits):
            await self._change(name, b"", "")
        elif await self._change(b"", name, json.dumps(limits)) < 0:
            raise QuotaExceeded(f"There are {MOST_KEYS} API keys and tenants with limits already.")

    async def _change(self, before: bytes, after: bytes, packed: str) -> int:
        channel = keys.channel_at(SHARD, keys.API_KEYS_CHANNEL)
        arguments = (secrets.token_hex(8), channel, MOST_KEYS, before, after, packed)
        done: int = await self._queue.run("change_key", SHARD, arguments)
        return done


def key_subscription(
    servers: Servers, on_change: Callable[[bytes], None], on_connected: Callable[[], None]
) -> Subscription:
    """Tells of changes of keys, as far as messages are not lost."""
    channel = keys.channel_at(SHARD, keys.API_KEYS_CHANNEL)
    return Subscription(servers.of(SHARD), channel, on_change, on_connected)
