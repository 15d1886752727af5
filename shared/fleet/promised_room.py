"""How many refused clients have a `retry-after` that is not over yet. Pure.

When a lane is full, one free slot is no room for all clients that were refused: the next one gets
the time at which there is room for those before it, and for itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

_MOST: Final = 10_000
_MOST_QUEUES: Final = 1_000


class PromisedRoom:
    """Of the latest 1,000 queues, of which each has a key; at most 10,000 clients of each."""

    def __init__(self) -> None:
        self._back_at_s: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    def before(self, queue: tuple[str, ...], now_s: float) -> int:
        """How many are still to come."""
        back_at_s = self._back_at_s.get(queue)
        while back_at_s and back_at_s[0] <= now_s:
            back_at_s.popleft()
        return len(back_at_s or ())

    def promise(self, queue: tuple[str, ...], at_s: float) -> None:
        """One more comes at this monotonic time, or later than those before it."""
        back_at_s = self._back_at_s.setdefault(queue, deque(maxlen=_MOST))
        back_at_s.append(max(at_s, back_at_s[-1]) if back_at_s else at_s)
        self._back_at_s.move_to_end(queue)
        while len(self._back_at_s) > _MOST_QUEUES:
            self._back_at_s.popitem(last=False)
