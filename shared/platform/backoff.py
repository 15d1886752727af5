"""Delays between the attempts of a retry loop."""

from __future__ import annotations

import random

_MAX_DOUBLINGS = 32  # a float would overflow in a long outage


class Backoff:
    """The delays of one retry loop: they double from `base_s` up to `cap_s`.

    The second half of each delay is random, so that processes that lost the same server do not
    come back in the same instant.
    """

    def __init__(self, base_s: float, cap_s: float) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures = 0

    def next_delay_s(self) -> float:
        """Count a failed attempt and return the seconds to wait before the next one."""
        half_s = min(self._cap_s, self._base_s * 2.0 ** min(self._failures, _MAX_DOUBLINGS)) / 2
        self._failures += 1
        return half_s + random.uniform(0, half_s)

    def reset(self) -> None:
        """An attempt succeeded: the next delay is the shortest again."""
        self._failures = 0
