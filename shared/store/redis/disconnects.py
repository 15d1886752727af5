"""Which processes have lost their connection to a Redis server. Pure: looks in, channels out.

A process that ends takes its connections with it, so its channel has no subscriber any more. A
connection may also be lost for a moment; that is why one look decides nothing.
"""

from __future__ import annotations

from collections.abc import Set

CONFIRM_S = 0.05
"""Shortest time between the first look that misses a channel and the one that confirms it."""
RETURN_S = 0.625
"""After Redis was away, processes have so long to subscribe again: thrice their longest delay."""
LATE_S = 2.0
"""The same while most of them are missing: the network is slow to come back, not they."""
SLOW_S = 1.0
"""A look that takes longer means that Redis stood still: processes may have to reconnect."""


class Disconnects:
    """The channels with subscribers, as one process sees them over one connection at a time."""

    def __init__(self) -> None:
        self._seen: Set[str] = frozenset()
        self._missing: dict[str, float] = {}  # since when
        self._seen_before: set[str] = set()  # over an earlier connection, and not since
        self._expected: set[str] = set()  # never seen
        self._connected_at: float | None = None

    @property
    def pending(self) -> bool:
        """Whether a look at the next opportunity may confirm that a channel is gone."""
        return bool(self._missing)

    def connection_lost(self) -> None:
        """The observer's own connection was lost: Redis may have restarted, and all have to
        subscribe again."""
        self._seen_before |= self._seen | self._missing.keys()
        self._seen, self._missing = frozenset(), {}
        self._connected_at = None

    def expect(self, channels: Set[str]) -> None:
        """These had subscribers before the observer was there, as far as is known."""
        self._expected |= channels - self._seen - self._seen_before

    def look(self, channels: Set[str], asked_at: float, answered_at: float) -> list[str]:
        """Returns the channels that have lost their last subscriber, each once.

        `channels` have subscribers now; the times are those of the question and of the answer.
        """
        if answered_at - asked_at > SLOW_S:
            self.connection_lost()
        if self._connected_at is None:
            self._connected_at = answered_at
        gone = [name for name in self._missing if name not in channels]
        gone = [name for name in gone if asked_at - self._missing[name] >= CONFIRM_S]
        missing = dict.fromkeys(self._seen - channels, answered_at) | self._missing
        self._missing = {
            name: since
            for name, since in missing.items()
            if name not in channels and name not in gone
        }
        self._seen = channels
        self._seen_before -= channels
        self._expected -= channels
        waited_s = asked_at - self._connected_at
        if channels and waited_s >= RETURN_S:  # a server that shows none at all may hide them
            gone += self._not_back(len(channels), waited_s)
        return gone

    def _not_back(self, present: int, waited_s: float) -> list[str]:
        missing, self._expected = self._expected, set()
        if len(self._seen_before) <= present or waited_s >= LATE_S:
            missing, self._seen_before = missing | self._seen_before, set()
        return sorted(missing)

    def retry(self, channel: str) -> None:
        """What was to be done about a channel that is gone could not be done: return it again."""
        self._seen_before.add(channel)
