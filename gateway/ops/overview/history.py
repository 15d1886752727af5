"""The last minutes of a few figures, for small charts. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

STEP_S = 5
_POINTS = 180

Figures = Mapping[str, float | None]


class History:
    """A point every five seconds, for a quarter of an hour. Where nothing was read it is null."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._points: deque[tuple[int, Figures]] = deque(maxlen=_POINTS)

    def add(self, at_s: float, figures: Figures) -> None:
        """The figures at this time; the first of each five seconds are kept."""
        step = int(at_s // STEP_S)
        if not self._points or step > self._points[-1][0]:
            self._points.append((step, figures))

    def to_object(self) -> dict[str, Any]:
        """`{step_s, from, <name>: [...]}`, the oldest point first; `from` is its time."""
        if not self._points:
            return {"step_s": STEP_S, "from": None, **{name: [] for name in self._names}}
        last = self._points[-1][0]
        first = max(self._points[0][0], last - _POINTS + 1)
        found = dict(self._points)
        steps = range(first, last + 1)
        series = {
            name: [found[step].get(name) if step in found else None for step in steps]
            for name in self._names
        }
        return {"step_s": STEP_S, "from": first * STEP_S, **series}
