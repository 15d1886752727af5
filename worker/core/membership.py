"""The membership of a worker in its pool."""

from __future__ import annotations

from typing import NamedTuple

from shared.store.queue import Queue


class Membership(NamedTuple):
    """The queue that a worker serves, its pool, and its id."""

    queue: Queue
    pool: str
    worker_id: str
