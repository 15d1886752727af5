"""Quotas: how much of one tenant is kept in Redis, and waits, at a time."""

from __future__ import annotations

from typing import NamedTuple


class Quotas(NamedTuple):
    """The quotas of one tenant in one shard; 0: no limit."""

    jobs: int = 0
    """Jobs that wait, run, or have ended; responses are jobs."""
    conversations: int = 0
    kept_bytes: int = 0
    """Of conversations, and of requests and answers above 4 KiB."""
    waiting: int = 0
    """Jobs that wait in one lane of a pool."""

    def of_shard(self, shards: int) -> Quotas:
        """The share of one of so many shards."""
        return Quotas(*(-(-most // shards) for most in self))


NO_QUOTAS = Quotas()
