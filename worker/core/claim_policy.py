"""How many jobs to claim now, and why. Pure: a snapshot in, a decision out.

A job that waits inside an engine can't be taken by an idle worker, so a worker claims no more jobs
than its engine has free slots for, and room in its KV cache; all other jobs wait in Redis.

A suspect, a job that may have ended its workers, is taken only by a worker that runs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from shared.job.states import WorkerState

CLAIM_BATCH = 16
"""Most jobs in one claim: between two claims, other idle workers get their share."""
PATIENCE_S = 1.0
"""A worker that runs jobs leaves waiting suspects to idle workers for so long."""


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
    kv_per_prompt: float = 0.0
    """What the mean prompt takes of the KV cache, 0 to 1; 0: not known."""
    draining: bool = False
    isolated: bool = False
    """The worker runs suspects, or finishes its jobs to run them."""
    paused: str = ""
    """Why an operator has paused the worker, in words; empty if none has."""


class SuspectSnapshot(NamedTuple):
    """One worker, and the suspects of its pool, at one moment."""

    waiting: bool
    """Suspects wait."""
    waited_s: float
    """Since the worker first saw that they do."""
    isolated: bool
    """The worker has the right to run them."""
    others: int
    """Jobs that it runs or is claiming, without the suspects that it has taken."""
    unproven: int
    """Suspects that it has taken and that have made no output yet."""
    draining: bool = False


class SuspectStep(Enum):
    """What a worker does about waiting suspects now."""

    WAIT = "wait"
    ISOLATE = "isolate"
    """Ask for the right to run them; from then on claim nothing else."""
    TAKE = "take"
    """Take the next one."""
    END = "end"
    """Give up the right, and claim as before."""


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """Claim at most `count` jobs."""

    count: int
    state: WorkerState
    reason: str
    """Why, in a short sentence that /readyz and the registry show."""
    left_over: int = 0
    """Jobs beyond `count` that could be claimed as well."""


def free_slots(now: SlotSnapshot) -> int:
    """Jobs that may be claimed now. Called at every engine step."""
    if now.draining or now.isolated or now.paused or now.kv_usage > now.kv_high_watermark:
        return 0
    free = max(0, now.slots - now.unfinished - now.starting)
    if not now.kv_per_prompt:
        return free
    # One at least: a prompt may be shorter, or in the cache already.
    room = (now.kv_high_watermark - now.kv_usage) / now.kv_per_prompt
    return min(free, max(1, int(room)))


def decide(now: SlotSnapshot, claimers: int = 1) -> ClaimDecision:
    """How many jobs one of `claimers` concurrent claimers takes in its next claim."""
    free = free_slots(now)
    if now.draining:
        return ClaimDecision(0, WorkerState.DRAINING, "draining: claims nothing")
    if now.paused:
        return ClaimDecision(0, WorkerState.PAUSED, f"{now.paused}: claims nothing")
    if now.isolated:
        return ClaimDecision(0, WorkerState.BUSY, "runs suspects alone: claims nothing else")
    if now.slots <= now.unfinished + now.starting:
        return ClaimDecision(0, WorkerState.BUSY, f"all {now.slots} slots are taken")
    if free == 0:
        return ClaimDecision(0, WorkerState.BUSY, f"KV cache {now.kv_usage:.0%} full")
    count = min(-(-free // claimers), CLAIM_BATCH)
    reason = f"{free} of {now.slots} slots are free"
    if free < now.slots - now.unfinished - now.starting:
        reason = f"the KV cache has room for {free} more"
    return ClaimDecision(count, WorkerState.READY, reason, left_over=free - count)


def next_suspect_step(now: SuspectSnapshot) -> SuspectStep:
    """What the worker does next.

    A suspect that has made output is none any more: its attempts count from zero again. So the next
    one may be taken while it runs, and the worker goes on with other jobs after the last.
    """
    if now.draining:
        return SuspectStep.END
    if now.isolated and now.unproven:
        return SuspectStep.WAIT
    if not now.waiting:
        return SuspectStep.END
    if now.isolated:
        return SuspectStep.WAIT if now.others else SuspectStep.TAKE
    idle = now.others == 0
    return SuspectStep.ISOLATE if idle or now.waited_s >= PATIENCE_S else SuspectStep.WAIT
