"""How many jobs to claim now, and why. Pure: a snapshot in, a decision out.

A job that waits inside an engine can't be taken by an idle neighbour, so a worker claims no more
than it can run at once; what waits stays in Redis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shared.protocol.states import WorkerState

CLAIM_BATCH = 16
"""Most jobs in one claim: between two claims, other idle workers get their share."""


class Snapshot(NamedTuple):
    """What the decision looks at."""

    slots: int
    """Sequences that the engine runs at once."""
    unfinished: int
    """Sequences in the engine."""
    entering: int
    """Jobs that were claimed and have not reached the engine yet; one sequence each at least."""
    kv_usage: float
    kv_high_watermark: float
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Claim at most `count` jobs."""

    count: int
    state: WorkerState
    reason: str
    spare: int = 0
    """Slots that are free even then."""


def free_slots(now: Snapshot) -> int:
    """Slots that jobs may have now. Asked at every engine step."""
    if now.draining or now.kv_usage > now.kv_high_watermark:
        return 0
    return max(0, now.slots - now.unfinished - now.entering)


def decide(now: Snapshot, shares: int = 1) -> Decision:
    """How many jobs to claim, where so many claims are made at a time."""
    free = free_slots(now)
    if now.draining:
        return Decision(0, WorkerState.DRAINING, "draining: claims nothing")
    if now.slots <= now.unfinished + now.entering:
        return Decision(0, WorkerState.BUSY, f"all {now.slots} slots are taken")
    if free == 0:
        return Decision(0, WorkerState.BUSY, f"KV cache {now.kv_usage:.0%} full")
    count = min(-(-free // shares), CLAIM_BATCH)
    reason = f"{free} of {now.slots} slots are free"
    return Decision(count, WorkerState.READY, reason, spare=free - count)
