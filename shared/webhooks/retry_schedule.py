"""When a delivery that has failed is tried again."""

from __future__ import annotations

DELAYS_S = (5, 60, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 72_000)
"""Behind the first failure, the second, ...; all together 72 hours less an hour."""
LIFETIME_S = 72 * 3600.0
"""From the event on: what has not arrived by then has failed."""
_JITTER = 0.1
_MOST_RETRY_AFTER_S = 86_400.0


def next_delay_s(
    tries: int, age_s: float, random: float, retry_after_s: float = 0.0
) -> float | None:
    """Seconds until the next try; None: that was the last one.

    `tries`: how many have failed. `age_s`: since the event. `random`: from 0 to 1. `retry_after_s`:
    what the receiver has asked for; at most a day is granted.
    """
    if tries > len(DELAYS_S):
        return None
    delay_s = DELAYS_S[tries - 1] * (1 - _JITTER * random)
    delay_s = max(delay_s, min(retry_after_s, _MOST_RETRY_AFTER_S) * (1 + _JITTER * random))
    return delay_s if age_s + delay_s <= LIFETIME_S else None
