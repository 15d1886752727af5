"""Waits of calls compared with what their clients were told, and the range that follows. Pure.

Who comes next decides how long a tenant waits, so no single figure is right. Where the last waits
of a tenant were 0.8 to 1.5 times as long as told, so will be most of its next ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median
from typing import Final

from shared.fleet.limits import TOLD_WAITS

LEAST_S: Final = 2.0
"""Shorter waits are not compared: the first output takes a part of that by itself."""
_KEPT: Final = 100
_LEAST: Final = 20
"""So many must be known."""
_MOST_TENANTS: Final = 1_000
_ALL: Final = ""
"""In place of a tenant, which never has an empty name."""
_LOW, _HIGH = 0.05, 0.95
"""Wide, as waits drift while a queue grows: on VTC's trace 72 to 80 % of the waits are in it."""


class ToldWaits:
    """The last waits by pool and tenant, of at most 1,000 tenants: the latest."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._ended_at_s: dict[str, float] = {}  # by pool, the last one

    def ended(self, pool: str, tenant: str, told_s: float, real_s: float, at_s: float) -> None:
        """A wait that was told, at least `LEAST_S`, is over now, at the monotonic time `at_s`."""
        self._ended_at_s[pool] = at_s
        for name in {tenant, _ALL}:
            ratios = self._ratios.setdefault((pool, name), deque(maxlen=_KEPT))
            ratios.append(real_s / told_s)
            self._ratios.move_to_end((pool, name))
        while len(self._ratios) > _MOST_TENANTS:
            self._ratios.popitem(last=False)

    def ratio(self, pool: str, at_s: float) -> float | None:
        """The median of a pool's last waits over what was told; None: too few, or too old."""
        ratios = self._ratios.get((pool, _ALL), ())
        old_s = at_s - self._ended_at_s.get(pool, 0.0)
        return median(ratios) if len(ratios) >= _LEAST and old_s < TOLD_WAITS.within_s else None

    def range_s(self, pool: str, tenant: str, told_s: float) -> tuple[float, float] | None:
        """Nine of ten of the last waits that were told so are in between; None: too few are known.

        They are those of the tenant, or of the pool where the tenant has had too few.
        """
        for name in (tenant, _ALL):
            ratios = sorted(self._ratios.get((pool, name), ()))
            if len(ratios) >= _LEAST:
                low, high = (ratios[int(part * (len(ratios) - 1) + 0.5)] for part in (_LOW, _HIGH))
                return told_s * low, told_s * high
        return None
