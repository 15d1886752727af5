"""Delays between the attempts of a retry loop, on redis.backoff."""

from __future__ import annotations

from redis.backoff import EqualJitterBackoff

_MAX_DOUBLINGS = 32  # redis-py computes 2 ** failures, which overflows a float in a long outage


class Backoff:
    """The delays of one retry loop: they double from `base_s` up to `cap_s`.

    The second half of each delay is random, so that processes that lost the same server do not
    come back in the same instant.
    """

    def __init__(self, base_s: float, cap_s: float) -> None:
        self._delays = EqualJitterBackoff(cap=cap_s, base=base_s)
        self._failures = 0

    def next_delay_s(self) -> float:
        """Count a failed attempt and return the seconds to wait before the next one."""
        delay_s = self._delays.compute(min(self._failures, _MAX_DOUBLINGS))
        self._failures += 1
        return delay_s

    def reset(self) -> None:
        """An attempt succeeded: the next delay is the shortest again."""
        self._failures = 0
