"""Quotas: how much of one tenant is kept in Redis, and waits, at a time."""

from __future__ import annotations

from typing import NamedTuple


class Quotas(NamedTuple):
    """The quotas of one tenant in one shard."""

    kept_bytes: int = 0
    """Of all its data; 0: a share of Redis' memory."""
    waiting: int = 0
    """Jobs that wait in one lane of a pool; 0: no limit."""

    def of_shard(self, shards: int) -> Quotas:
        """The share of one of so many shards."""
        return Quotas(*(-(-most // shards) for most in self))


NO_QUOTAS = Quotas()
