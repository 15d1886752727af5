"""A schedule of pauses of worker, Redis and gateway while answers run: drawn from a seed, or fixed.

A pause of about one lease is when two workers may both hold a job, or one worker believes that it
still does. In any case an answer that a client got as complete must be right, and must equal the
job's record.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

_LEASE_SHARES = (1 / 3, 0.8, 12.5 / 15, 1.0, 2.0)
"""Pauses in leases. Workers renew every third of a lease and abort their jobs after 0.8."""
_JITTER = 0.1
_SHORT_S = (0.01, 0.2)


class PauseTarget(StrEnum):
    """Which process is stopped."""

    WORKER = "worker"
    REDIS = "redis"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, later SIGCONT."""

    target: PauseTarget
    seconds: float
    """Its length; with `since_renewal` counted from the worker's last renewal of its leases."""
    since_renewal: bool = False
    gap_s: float = 0.0
    """Seconds from the end of the previous pause."""
    overlaps: bool = False
    """The gap counts from the start of the previous pause."""
    wait_for_tokens: bool = False
    """Begin only when all open streams have received tokens since the previous pause."""
    calls: int = 0
    """New streams started during the pause."""
    n: int = 0
    """Index of the worker."""

    def __str__(self) -> str:
        since = " since its renewal" if self.since_renewal else ""
        also = " (overlapping)" if self.overlaps else ""
        return (
            f"{self.target} {self.n} for {self.seconds:.3f} s{since}, {self.gap_s:.3f} s later"
            f"{also}, {self.calls} new calls"
        )


@dataclass(frozen=True, slots=True)
class PauseSchedule:
    """Calls and pauses of one round."""

    streams: int
    jobs: int
    tokens: int
    after: int
    """The first pause begins when every stream has this many tokens."""
    pauses: tuple[Pause, ...]

    def __str__(self) -> str:
        pauses = "; ".join(map(str, self.pauses))
        return (
            f"{self.streams} streams and {self.jobs} jobs of {self.tokens} tokens, "
            f"after {self.after}: {pauses}"
        )


def lost_lease(lease_s: float) -> PauseSchedule:
    """Return the schedule after which clients once got a second answer appended to a first part.

    With a lease of 15 s: when four streams have 14 tokens, Redis stops for 0.25 s; when the streams
    have continued, the worker stops until 12.5 s after its last renewal while four new calls wait.
    All times scale with the lease, so the engine's steps must, too: 25 ms for 15 s.
    """
    scale = lease_s / 15
    return PauseSchedule(
        streams=4,
        jobs=0,
        tokens=120,
        after=14,
        pauses=(
            Pause(PauseTarget.REDIS, 0.25 * scale),
            Pause(
                PauseTarget.WORKER, 12.5 * scale, since_renewal=True, wait_for_tokens=True, calls=4
            ),
        ),
    )


def silent_redis(lease_s: float) -> PauseSchedule:
    """Return a schedule: Redis stops for 0.9 of a lease early in the streams, while calls wait.

    Workers abort their jobs after 0.8 of a lease, then begin the waiting ones.
    """
    pause = Pause(PauseTarget.REDIS, 0.9 * lease_s, calls=3)
    return PauseSchedule(streams=4, jobs=0, tokens=200, after=5, pauses=(pause,))


def draw(seed: str, lease_s: float, workers: int) -> PauseSchedule:
    """Draw a schedule; equal arguments give equal schedules."""
    rng = random.Random(seed)
    pauses = [_pause(rng, lease_s, workers) for _ in range(rng.randint(1, 3))]
    pauses[0] = replace(pauses[0], overlaps=False)
    return PauseSchedule(
        streams=rng.randint(2, 4),
        jobs=rng.randint(0, 2),
        tokens=rng.randint(80, 240),
        after=rng.choice((1, 5, 14, 31, 33, 60)),
        pauses=tuple(pauses),
    )


def _pause(rng: random.Random, lease_s: float, workers: int) -> Pause:
    target = rng.choices(list(PauseTarget), (5, 3, 1))[0]
    seconds = rng.choice(_LEASE_SHARES) * lease_s * rng.uniform(1 - _JITTER, 1 + _JITTER)
    if target is not PauseTarget.WORKER and rng.random() < 0.5:
        seconds = rng.uniform(*_SHORT_S)
    return Pause(
        target,
        seconds,
        since_renewal=target is PauseTarget.WORKER and rng.random() < 0.5,
        gap_s=rng.uniform(0, 0.3 * lease_s),
        overlaps=rng.random() < 0.3,
        wait_for_tokens=rng.random() < 0.3,
        calls=rng.randint(0, 4),
        n=rng.randrange(workers) if target is PauseTarget.WORKER else 0,
    )
