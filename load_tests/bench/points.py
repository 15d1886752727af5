"""The points of load: streams or requests at once, their total, and the engine's speed.

Streams: each connection sends its next request when its answer is complete. Requests: the same with
answers of one token that are not streamed. The totals are small enough for rounds of seconds, and
large enough for hundreds of requests or thousands of tokens at every point but c1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from load_tests.systems.engine import FAST, PACED, EngineTiming

_LONGEST_RAMP_S = 0.02
_REQUEST_RAMP_S = 0.0002


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of load."""

    name: str
    connections: int
    """Open at once."""
    requests: int
    """In all."""
    tokens: int
    """Of each answer."""
    stream: bool = True
    timing: EngineTiming = PACED
    max_rounds: int = 3
    """Points whose CPU time is compared with a target get as many rounds as asked for."""

    @property
    def unit(self) -> Literal["token", "request"]:
        """What CPU time is divided by."""
        return "token" if self.stream else "request"

    @property
    def step_s(self) -> float:
        """Seconds of an engine step with all connections: its part of the time to first token."""
        return self.timing.step_s(self.connections)

    @property
    def ramp_s(self) -> float:
        """Seconds between the starts of two connections, which spread over half an answer."""
        if not self.stream:
            return _REQUEST_RAMP_S
        return min(_LONGEST_RAMP_S, (self.tokens + 1) * self.step_s / self.connections / 2)

    @property
    def shortest_s(self) -> float:
        """Seconds that the load takes if everything but the engine takes no time."""
        return self.requests / self.connections * (self.tokens + 2) * self.step_s


_ALL_ROUNDS = 1000

POINTS = {
    point.name: point
    for point in (
        Point("c1", 1, 30, 12, max_rounds=5),
        Point("c16", 16, 64, 64),
        Point("c64", 64, 128, 64, max_rounds=_ALL_ROUNDS),
        Point("c256", 256, 640, 32),
        Point("c1024", 1024, 1536, 16),
        Point("req64", 64, 1920, 1, stream=False, max_rounds=_ALL_ROUNDS),
        Point("sat64", 64, 256, 200, timing=FAST),
    )
}
