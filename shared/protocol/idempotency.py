"""An idempotency key: calls with the same key and body make one job."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

IDEMPOTENCY_TTL_S = 86_400.0
"""How long a key names its job, which is kept for at least as long after its end."""


class IdempotencyKey(NamedTuple):
    """A client's key as Redis holds it: it is valid for one tenant and one path."""

    name: str
    """Of the Redis key: the tenant, and a digest of the path and the client's key."""
    body_hash: bytes

    @classmethod
    def of(cls, tenant: str, path: str, key: str, body: bytes) -> IdempotencyKey:
        """For a request with this body."""
        digest = hashlib.sha256(f"{path}\0{key}".encode()).hexdigest()
        return cls(f"{tenant}:{digest}", hashlib.sha256(body).digest())

    def shard(self, shards: int) -> int:
        """The shard of its job: all gateways look for the key there."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) % shards
