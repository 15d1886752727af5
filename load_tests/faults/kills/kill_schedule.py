"""When to kill what: drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class KillKind(StrEnum):
    """What is done."""

    WORKER = "worker kill -9"
    """SIGKILL; a replacement starts at once."""
    ENGINE = "engine killed"
    """The engine in the worker dies; the worker ends itself, then a replacement starts."""
    STOP = "worker stopped"
    """SIGSTOP for 0.5 to 3 times what makes it lost, then SIGCONT."""
    SILENT = "worker silent"
    """SIGSTOP for good, as a machine that is gone; it is killed and replaced much later."""
    GATEWAY = "gateway kill -9"
    """SIGKILL; started again on the same port at once."""
    REDIS = "Redis kill -9"
    """SIGKILL; started again on the same data at once."""


KILLED = (KillKind.WORKER, KillKind.ENGINE, KillKind.GATEWAY, KillKind.REDIS)
"""Those that end a process, which is noticed at once."""
STOPPED = (KillKind.STOP, KillKind.SILENT)
"""Those that leave a process connected: it is found by its silence only."""
WEIGHTS = {
    KillKind.WORKER: 0.71,
    KillKind.ENGINE: 0.15,
    KillKind.STOP: 0.06,
    KillKind.SILENT: 0.01,
    KillKind.GATEWAY: 0.05,
    KillKind.REDIS: 0.02,
}
"""Share of each kind."""
_STOP_TIMES = (0.5, 3.0)
_GAP = (0.2, 1.8)
"""Shortest and longest time between two kills, in mean ones."""


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """One kill that is to come."""

    kind: KillKind
    after_s: float
    """Seconds after the kill before."""
    choice: float
    """0 to 1: which of the processes."""
    stop_times: float
    """How long a process is stopped, in times of what makes it lost."""


def plan(
    seed: int, kills: int, rate: float, kinds: Sequence[KillKind] = tuple(KillKind)
) -> Iterator[PlannedKill]:
    """Draw `kills` kills at random times, `rate` a second on average; equal seeds, equal kills.

    The first ones are one of each of the `kinds`, so that a short run has them all.
    """
    rng = random.Random(seed)
    weights = [WEIGHTS[kind] for kind in kinds]
    first = rng.sample(kinds, len(kinds))
    for n in range(kills):
        kind = first[n] if n < len(first) else rng.choices(kinds, weights)[0]
        yield PlannedKill(kind, rng.uniform(*_GAP) / rate, rng.random(), rng.uniform(*_STOP_TIMES))
