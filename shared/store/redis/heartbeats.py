"""Which workers stand still although their connections are open. Pure: looks in, channels out.

A worker that is stopped, or whose machine or cable is gone, keeps its connections as far as Redis
can tell. So a thread of each worker subscribes to another heartbeat channel each `BEAT_S`: a
heartbeat channel that stays is the one of a worker that stands still. Nothing is written for that:
it goes on when the memory or the disk of Redis is full, and ends with the process.

Time counts only as far as the observer has looked in it: an observer that gets no CPU time, or a
Redis that stands still, makes no worker silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from shared.store.redis import keys

BEAT_S = 0.5
"""A worker changes its heartbeat channel so often."""
LATE_S = 0.2
"""A look that comes so much later than it was due was late: the time beyond does not count."""
STOOD_STILL_S = 1.0
"""A look later than this: the observer, or Redis, stood still. All have their whole time again."""
_GONE_S = 5.0
"""A silent worker whose channel has been gone for so long has ended."""


class Changes(NamedTuple):
    """What a look has found."""

    silent: list[str]
    """Heartbeat channels that have stayed for too long, each once."""
    returned: list[str]
    """Those of them whose worker has another one now, each once."""


class Heartbeats:
    """The heartbeat channels of one Redis server, as one process sees them.

    `silence_s`: a worker is silent when no new channel of it has appeared for so long. It has two
    for a moment at each beat, and for longer where the connection of the old one is half-open.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._observed_s = 0.0  # the time that counts
        self._looked_at: float | None = None
        self._since: dict[str, float] = {}  # in observed time
        self._silent: dict[str, float] = {}  # and when it was seen last

    def connection_lost(self) -> None:
        """The observer's connection was lost: another Redis may answer the next look."""
        self._looked_at = None
        self._since = {}
        self._silent = {}

    def look(self, channels: Set[str], at: float, due_s: float) -> Changes:
        """`channels` are the heartbeat channels that Redis has shown at `at`, on the monotonic
        clock; the look was due `due_s` after the one before."""
        passed_s = at - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = at
        if passed_s > due_s + STOOD_STILL_S:
            self._since = {}
        self._observed_s += min(passed_s, due_s + LATE_S)
        self._since = {name: self._since.get(name, self._observed_s) for name in channels}
        newest: dict[str, str] = {}  # of each worker
        for name, since in self._since.items():
            worker = keys.worker_of_heartbeat(name)
            if worker not in newest or since > self._since[newest[worker]]:
                newest[worker] = name
        returned = self._take_returned(newest) if self._silent else []
        stayed = [
            name
            for name in newest.values()
            if self._observed_s - self._since[name] >= self._silence_s
        ]
        silent = sorted(name for name in stayed if name not in self._silent)
        self._silent |= dict.fromkeys(stayed, self._observed_s)
        return Changes(silent, returned)

    def _take_returned(self, newest: Mapping[str, str]) -> list[str]:
        beating = {worker for worker, name in newest.items() if name not in self._silent}
        returned = sorted(
            name for name in self._silent if keys.worker_of_heartbeat(name) in beating
        )
        self._silent = {
            name: seen
            for name, seen in self._silent.items()
            if name not in returned and self._observed_s - seen < _GONE_S
        }
        return returned
