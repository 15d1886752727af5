"""Which fault comes when: drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gateway.batches.owner import LOCK_S


class BatchFault(StrEnum):
    """What is done."""

    CELERY = "Celery kill -9"
    """SIGKILL to the process that may own batches; its parent starts another one."""
    MAINTENANCE = "maintenance kill -9"
    """SIGKILL to its parent, with which it ends; started again at once."""
    OWNER = "owner stopped"
    """SIGSTOP to the process that owns a batch, for longer than its lock holds, then SIGCONT."""
    GATEWAY = "gateway kill -9"
    WORKER = "worker kill -9"
    STORAGE = "storage away"
    """The folder is moved away, or nothing listens at the port of S3; then it is back."""
    REDIS = "Redis kill -9"
    """SIGKILL; started again on the same data."""


WEIGHTS = {
    BatchFault.CELERY: 0.18,
    BatchFault.MAINTENANCE: 0.18,
    BatchFault.OWNER: 0.1,
    BatchFault.GATEWAY: 0.14,
    BatchFault.WORKER: 0.2,
    BatchFault.STORAGE: 0.12,
    BatchFault.REDIS: 0.08,
}
"""Share of each."""
_GAP = (0.3, 1.7)
"""Shortest and longest time between two, in mean ones."""
_LASTS_S = {
    BatchFault.OWNER: (LOCK_S + 1, LOCK_S + 4),
    BatchFault.STORAGE: (1.0, 4.0),
    BatchFault.REDIS: (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault that is to come."""

    fault: BatchFault
    after_s: float
    """Seconds after the one before has begun."""
    choice: float
    """0 to 1: which of the processes."""
    lasts_s: float


def plan(seed: str, every_s: float) -> Iterator[PlannedFault]:
    """Draw faults, one every `every_s` seconds on average, without end; equal seeds, equal ones.

    The first ones are one of each kind.
    """
    rng = random.Random(seed)
    first = rng.sample(list(BatchFault), len(BatchFault))
    while True:
        fault = first.pop() if first else rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        after_s, choice = rng.uniform(*_GAP) * every_s, rng.random()
        yield PlannedFault(fault, after_s, choice, rng.uniform(*_LASTS_S.get(fault, (0.0, 0.0))))
