"""The queues of a pool: its lanes, best first, and those of its LoRA adapters.

The names of a client's lanes are OpenAI's `service_tier`. The jobs of each adapter wait in lanes of
their own. The workers of a pool claim from the pool's lanes and from those of its adapters in turn,
so that an adapter with many jobs does not keep the others waiting. In keys and scripts an adapter
queue takes the place of the pool's name; only suspects share the pool's lane.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"
RETRY_LANE: Final = "retry"
"""Requeued jobs: they have waited already, so they go first. Nothing is submitted to it."""
SUSPECT_LANE: Final = "suspect"
"""Jobs that may have ended their workers: a worker that runs nothing takes one at a time."""
SUSPECT_FROM: Final = 2
"""Attempts without progress that make a job a suspect."""

CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
SHARED_LANES: Final = (RETRY_LANE, *CLIENT_LANES)
"""Lanes whose jobs run beside each other."""
WAITING_LANES: Final = (*CLIENT_LANES, SUSPECT_LANE)
"""Lanes that have a set of waiting jobs: requeued jobs wait in the lane of their request."""
LANES: Final = (*SHARED_LANES, SUSPECT_LANE)

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
