"""Pauses of worker, Redis and gateway while answers run: drawn from a seed, or given.

A pause around the time of a lease is where two workers may believe that a job is theirs, or one
worker that it still is. Whatever happens, an answer that a client got as complete must be right,
and must be what the job's record has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

_LEASE_SHARES = (1 / 3, 0.8, 12.5 / 15, 1.0, 2.0)
"""Renewals are a third of a lease apart; a worker gives its jobs up after 0.8 of one."""
_JITTER = 0.1
_SHORT_S = (0.01, 0.2)


class Target(StrEnum):
    """What is stopped."""

    WORKER = "worker"
    REDIS = "redis"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, then SIGCONT."""

    target: Target
    seconds: float
    """How long; of a worker with `since_renewal`, until so long after its last renewal."""
    since_renewal: bool = False
    gap_s: float = 0.0
    """From the end of the pause before it."""
    overlaps: bool = False
    """The gap counts from the begin of the pause before it."""
    wait_for_tokens: bool = False
    """Begin only when the streams that are open have gone on since the pause before it."""
    calls: int = 0
    """New streams that begin while it lasts."""
    n: int = 0
    """Which worker."""

    def __str__(self) -> str:
        since = " since its renewal" if self.since_renewal else ""
        also = " (overlapping)" if self.overlaps else ""
        return (
            f"{self.target} {self.n} for {self.seconds:.3f} s{since}, {self.gap_s:.3f} s later"
            f"{also}, {self.calls} new calls"
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """One round."""

    streams: int
    jobs: int
    tokens: int
    after: int
    """The first pause begins when every stream has so many tokens."""
    pauses: tuple[Pause, ...]

    def __str__(self) -> str:
        pauses = "; ".join(map(str, self.pauses))
        return (
            f"{self.streams} streams and {self.jobs} jobs of {self.tokens} tokens, "
            f"after {self.after}: {pauses}"
        )


def lost_lease(lease_s: float) -> Schedule:
    """The one that gave clients the second answer behind the first one's beginning.

    For a lease of 15 s: four streams that are 14 tokens old, Redis stops for 0.25 s, and when they
    have gone on the worker stops until 12.5 s after its renewal while four new calls wait. All
    times shrink with the lease, so the engine's steps must, too: 25 ms for 15 s.
    """
    scale = lease_s / 15
    return Schedule(
        streams=4,
        jobs=0,
        tokens=120,
        after=14,
        pauses=(
            Pause(Target.REDIS, 0.25 * scale),
            Pause(Target.WORKER, 12.5 * scale, since_renewal=True, wait_for_tokens=True, calls=4),
        ),
    )


def silent_redis(lease_s: float) -> Schedule:
    """Redis stops for 0.9 of a lease while streams are young and new calls wait.

    Workers drop their jobs after 0.8 of a lease, and begin the new ones.
    """
    pause = Pause(Target.REDIS, 0.9 * lease_s, calls=3)
    return Schedule(streams=4, jobs=0, tokens=200, after=5, pauses=(pause,))


def draw(seed: str, lease_s: float, workers: int) -> Schedule:
    """The same for the same arguments."""
    dice = random.Random(seed)
    pauses = [_pause(dice, lease_s, workers) for _ in range(dice.randint(1, 3))]
    pauses[0] = replace(pauses[0], overlaps=False)
    return Schedule(
        streams=dice.randint(2, 4),
        jobs=dice.randint(0, 2),
        tokens=dice.randint(80, 240),
        after=dice.choice((1, 5, 14, 31, 33, 60)),
        pauses=tuple(pauses),
    )


def _pause(dice: random.Random, lease_s: float, workers: int) -> Pause:
    target = dice.choices(list(Target), (5, 3, 1))[0]
    seconds = dice.choice(_LEASE_SHARES) * lease_s * dice.uniform(1 - _JITTER, 1 + _JITTER)
    if target is not Target.WORKER and dice.random() < 0.5:
        seconds = dice.uniform(*_SHORT_S)
    return Pause(
        target,
        seconds,
        since_renewal=target is Target.WORKER and dice.random() < 0.5,
        gap_s=dice.uniform(0, 0.3 * lease_s),
        overlaps=dice.random() < 0.3,
        wait_for_tokens=dice.random() < 0.3,
        calls=dice.randint(0, 4),
        n=dice.randrange(workers) if target is Target.WORKER else 0,
    )
