"""Whether a queue stands, or is a burst that drains. Pure.

A queue that is worth having absorbs a burst. One that stands makes every call wait for as long as
the longest ever did, and serves no more calls. The two differ by the shortest wait of the last
interval, as in CoDel (Nichols, Jacobson: "Controlling Queue Delay", 2012). A router can only drop
what it has queued already, more and more often; a gateway refuses new calls at the door. It goes on
to refuse each that would wait for longer than the target until none had to be refused for an
interval: else the next burst would fill the queue again before it is known to stand. ("Handling
Overload" in Google's SRE book; "Overload Control for Scaling WeChat Microservices", 2018, for why
the wait is the sign, and why refusing early is cheaper.) Better lanes need no rule of their own:
what waits in a worse lane is not before them, so theirs is the last queue that stands.
"""

from __future__ import annotations

from typing import Final

INTERVAL_S: Final = 10.0


class StandingQueue:
    """The waits that calls of one tenant would have in one lane."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._above_since_s = self._seen_at_s = self._refused_at_s = float("-inf")

    def seen(self, wait_s: float | None, now_s: float) -> bool:
        """A call comes that would wait for so long; True: it is to be refused.

        None: how long is not known, so that nothing is refused. `now_s`: monotonic.
        """
        unseen = now_s > self._seen_at_s + INTERVAL_S  # it may have drained meanwhile
        self._seen_at_s = now_s
        if wait_s is None or wait_s <= self._target_s:
            self._above_since_s = float("inf")
            return False
        if unseen:
            self._above_since_s = now_s
        self._above_since_s = min(self._above_since_s, now_s)
        stands = now_s >= self._above_since_s + INTERVAL_S
        if stands or now_s < self._refused_at_s + INTERVAL_S:
            self._refused_at_s = now_s
            return True
        return False
