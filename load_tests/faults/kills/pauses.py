"""How long a stream was silent after a kill. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from load_tests.faults.kills.kill_schedule import STOPPED, KillKind

_IN_FLIGHT_S = 0.5
"""Parts of an answer that had left the process before the kill may come for this long on a busy
machine."""

Hit = tuple[KillKind, float]
"""A kill that hit a request, and when."""


class Silence(NamedTuple):
    """From one part of a stream to the next; seconds of the monotonic clock."""

    began: float
    ended: float

    def overlaps(self, other: Silence) -> bool:
        """Return whether the two have a time in common."""
        return self.began < other.ended and other.began < self.ended

    @property
    def length_s(self) -> float:
        """How long it was."""
        return self.ended - self.began


def silence_after(at: float, arrivals: Sequence[float]) -> Silence | None:
    """Return the longest silence of a stream that a kill at this time hit.

    None if nothing came after it, or nothing before.
    """
    silences = [
        Silence(before, after)
        for before, after in pairwise(arrivals)
        if before <= at + _IN_FLIGHT_S and after > at
    ]
    return max(silences, key=lambda each: each.length_s, default=None)


class PauseLimits(NamedTuple):
    """Limits of the pauses of a run; seconds."""

    killed_p50_s: float = 0.5
    killed_p99_s: float = 1.5
    """Of streams whose process was killed."""
    silent_p50_s: float = 4.0
    """Of streams whose worker stood still for good."""


DEFAULTS_LIMITS = PauseLimits(0.3, inf, 2.0)
"""At default settings; p99 is only told: with 10,000 kills in half an hour, several often follow
each other in one pause."""


class Pause(NamedTuple):
    """The silence of one stream after one kill."""

    kind: KillKind
    length_s: float
    kills: int
    """How many kills hit the stream in this silence."""


def pauses(
    hits: Iterable[Hit], arrivals: Sequence[float], stopped: Sequence[Silence] = ()
) -> list[Pause]:
    """Return the pause after each kill that hit a stream.

    `stopped`: from when its worker was stopped to when it lost the job.

    Where a second kill hits it in the pause after the first, each gets the whole pause. But if one
    of them has stopped a worker, the pause is that one's alone: such a worker is found by its
    silence only.
    """
    found = [(kind, silence_after(at, arrivals)) for kind, at in hits]
    kills = Counter(silence for _, silence in found)
    return [
        Pause(kind, silence.length_s, kills[silence])
        for kind, silence in found
        if silence is not None and (kind in STOPPED or not any(map(silence.overlaps, stopped)))
    ]
