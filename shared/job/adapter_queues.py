"""Adapter queues: the jobs of each LoRA adapter wait in lanes of their own.

The workers of a pool claim from the pool's lanes and from those of its adapters in turn, so that an
adapter with many jobs does not keep the others waiting. In keys and scripts an adapter queue takes
the place of the pool's name; only suspects share the pool's lane.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

ADAPTER_MARK: Final = "+"
"""Stands between the pool's name and the adapter's in the name of an adapter queue, and nowhere
else in a pool's name."""


def adapter_queue(pool: str, adapter: str) -> str:
    """The name of the queue for the jobs of an adapter: readable, unique, and safe in a key."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", adapter.lower()).strip("-")[:32]
    digest = sha256(adapter.encode()).hexdigest()[:8]
    return f"{pool}{ADAPTER_MARK}{slug}-{digest}"


def pool_of(queue: str) -> str:
    """The pool whose workers read a queue: `queue` itself, or what an adapter queue belongs to."""
    return queue.partition(ADAPTER_MARK)[0]


def is_adapter_queue(queue: str, pool: str) -> bool:
    """Whether this is the queue of one of the pool's adapters."""
    return queue.startswith(pool + ADAPTER_MARK)
