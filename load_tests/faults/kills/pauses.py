"""How long a stream was silent after a kill. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_IN_FLIGHT_S = 0.05
"""Parts of an answer that had left the process before the kill may come for this long."""


def pause_after(at: float, arrivals: Sequence[float]) -> float | None:
    """Return the longest silence of a stream that a kill at this time hit.

    None if nothing came after it, or nothing before. Where a second kill hits the stream in the
    pause after the first, each gets the whole pause.
    """
    gaps = [
        after - before
        for before, after in pairwise(arrivals)
        if before <= at + _IN_FLIGHT_S and after > at
    ]
    return max(gaps, default=None)
