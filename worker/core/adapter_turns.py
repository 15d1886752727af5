"""From which queues to claim now: the pool's own and those of its LoRA adapters. Pure.

The queues take turns, the one that was served longest ago first, so an adapter with a thousand
waiting jobs does not delay those of another one. An engine can run only so many adapters at once:
a job of a further one would hold a slot and wait inside the engine for as long as jobs of the
others arrive. So it stays in Redis, and after `TURN_S` one of the running adapters gets no new
jobs until its last one has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

TURN_S = 2.0
"""An adapter that runs gets new jobs for at least so long while others wait for its place."""


class QueuesSnapshot(NamedTuple):
    """The queues of one worker at one moment. `adapters` are the names of adapter queues."""

    pool: str
    adapters: Sequence[str]
    waiting: Collection[str]
    """Adapter queues with waiting jobs."""
    running_s: Mapping[str, float]
    """Adapter queues with jobs in the engine, and for how long there have been some."""
    served: Mapping[str, int]
    """Number of the last claim that brought jobs from a queue."""
    places: int
    """Adapters that the engine can run at once."""


class Turns(NamedTuple):
    """A decision."""

    order: list[str]
    """The queues to claim from, in this order."""
    places: int
    """How many of them may be adapter queues of which nothing runs yet."""
    held_back: bool
    """Jobs wait that may not be claimed yet."""


def turns(now: QueuesSnapshot) -> Turns:
    """The decision for the next claim."""
    waiting = [queue for queue in now.adapters if queue in now.waiting]
    new = [queue for queue in waiting if queue not in now.running_s]
    places = max(0, now.places - len(now.running_s))
    oldest_first = sorted(now.running_s, key=lambda queue: -now.running_s[queue])
    yielding = {
        queue
        for queue in oldest_first[: max(0, len(new) - places)]
        if now.running_s[queue] >= TURN_S
    }
    order = [queue for queue in waiting if queue not in yielding and (places or queue not in new)]
    order = sorted([now.pool, *order], key=lambda queue: now.served.get(queue, 0))
    held_back = len(new) > places or any(queue in yielding for queue in waiting)
    return Turns(order, places, held_back)
