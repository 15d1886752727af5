"""An idempotency key: calls with the same key and body make one job."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

IDEMPOTENCY_TTL_S = 86_400.0
"""How long a key names its job, which is kept for at least as long after its end."""
RETRY_PREFIX = "flotilla-retry-"
"""The beginning of keys that shared/client makes for the retries of one call."""
RETRY_TTL_S = 3600.0
"""How long such a key names its job, which is kept no longer than without a key."""


class IdempotencyKey(NamedTuple):
    """A client's key as Redis holds it: it is valid for one tenant and one path."""

    name: str
    """Of the Redis key: the tenant, and a digest of the path and the client's key."""
    body_hash: bytes
    for_retries: bool = False
    """The client made it for the retries of one call."""

    @classmethod
    def of(
        cls, tenant: str, path: str, key: str, body: bytes, conversation: str = ""
    ) -> IdempotencyKey:
        """For a request with this body.

        `conversation`: of a response; its key is valid for one, in whose shard it lies.
        """
        digest = hashlib.sha256(f"{path}\0{conversation}\0{key}".encode()).hexdigest()
        return cls(
            f"{tenant}:{digest}", hashlib.sha256(body).digest(), key.startswith(RETRY_PREFIX)
        )

    @property
    def ttl_s(self) -> float:
        """How long it names its job."""
        return RETRY_TTL_S if self.for_retries else IDEMPOTENCY_TTL_S

    @property
    def job_ttl_s(self) -> float:
        """For how long its job is kept after its end, at least."""
        return 0.0 if self.for_retries else IDEMPOTENCY_TTL_S

    def shard(self, shards: int) -> int:
        """The shard of its job: all gateways look for the key there."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) % shards
