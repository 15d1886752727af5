"""How many jobs to claim now, and why. Pure: a snapshot in, a decision out.

A job that waits inside an engine can't be taken by an idle worker, so a worker claims no more than
its engine can run at once; all other jobs wait in Redis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shared.protocol.states import WorkerState

CLAIM_BATCH = 16
"""Most jobs in one claim: between two claims, other idle workers get their share."""


class SlotSnapshot(NamedTuple):
    """The worker's slots and KV cache at one moment."""

    slots: int
    """Sequences that the engine runs at once."""
    unfinished: int
    """Sequences in the engine."""
    starting: int
    """Jobs that were claimed and have not reached the engine yet; one sequence each at least."""
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""
    kv_high_watermark: float
    """Above this share of the KV cache nothing is claimed, 0 to 1."""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """Claim at most `count` jobs."""

    count: int
    state: WorkerState
    reason: str
    """Why, in a short sentence that /readyz and the registry show."""
    left_over: int = 0
    """Free slots beyond `count`."""


def free_slots(now: SlotSnapshot) -> int:
    """Slots that new jobs may have now. Called at every engine step."""
    if now.draining or now.kv_usage > now.kv_high_watermark:
        return 0
    return max(0, now.slots - now.unfinished - now.starting)


def decide(now: SlotSnapshot, claimers: int = 1) -> ClaimDecision:
    """How many jobs one of `claimers` concurrent claimers takes in its next claim."""
    free = free_slots(now)
    if now.draining:
        return ClaimDecision(0, WorkerState.DRAINING, "draining: claims nothing")
    if now.slots <= now.unfinished + now.starting:
        return ClaimDecision(0, WorkerState.BUSY, f"all {now.slots} slots are taken")
    if free == 0:
        return ClaimDecision(0, WorkerState.BUSY, f"KV cache {now.kv_usage:.0%} full")
    count = min(-(-free // claimers), CLAIM_BATCH)
    reason = f"{free} of {now.slots} slots are free"
    return ClaimDecision(count, WorkerState.READY, reason, left_over=free - count)
