"""The membership of a worker in its pool."""

from __future__ import annotations

from typing import NamedTuple

from shared.store.redis.job_queue import JobQueue


class Membership(NamedTuple):
    """The queue that a worker serves, its pool, its id, and the length of its leases (seconds)."""

    queue: JobQueue
    pool: str
    worker_id: str
    lease_s: float
