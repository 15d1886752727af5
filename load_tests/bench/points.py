"""The points of load that are measured: how many streams or requests, how long, how fast an engine.

Streams: c connections, each sends its next request when its answer is complete. Requests: the same
with answers of one token that are not streamed. The totals are small enough for a round of seconds
and large enough for hundreds of requests or thousands of tokens at every point but c1.
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
    """At once; of an open loop, about so many."""
    requests: int
    tokens: int
    """Of every answer."""
    stream: bool = True
    rate: float = 0.0
    """Requests a second of an open loop; 0 is a closed loop."""
    timing: EngineTiming = PACED
    most_rounds: int = 3
    """The points whose CPU time decides get as many as are asked for."""

    @property
    def unit(self) -> Literal["token", "request"]:
        """What its CPU time is divided by."""
        return "token" if self.stream else "request"

    @property
    def step_s(self) -> float:
        """The engine's, with all connections running: its part of the time to the first token."""
        return self.timing.step_s(self.connections)

    @property
    def ramp_s(self) -> float:
        """Between two connections at the start: they spread over half an answer's length."""
        if not self.stream:
            return _REQUEST_RAMP_S
        return min(_LONGEST_RAMP_S, (self.tokens + 1) * self.step_s / self.connections / 2)

    @property
    def shortest_s(self) -> float:
        """With nothing but the engine's steps."""
        if self.rate:
            return self.requests / self.rate
        return self.requests / self.connections * (self.tokens + 2) * self.step_s


OPEN_STREAMS = "open-streams"
"""The measurement of memory, among a system's `skipped_points`."""

_ALL_ROUNDS = 1000
# An answer of 64 tokens in steps of 10 ms takes 0.65 s: 60 a second keep 40 running. From there on
# steps grow with the batch, and 62.5 a second are as many as the engine answers at all.
_POISSON_RATE = 60.0

POINTS = {
    point.name: point
    for point in (
        Point("c1", 1, 30, 12, most_rounds=5),
        Point("c16", 16, 64, 64),
        Point("c64", 64, 128, 64, most_rounds=_ALL_ROUNDS),
        Point("c256", 256, 640, 32),
        Point("c1024", 1024, 1536, 16),
        Point("req1", 1, 100, 1, stream=False),
        Point("req16", 16, 800, 1, stream=False),
        Point("req64", 64, 1920, 1, stream=False, most_rounds=_ALL_ROUNDS),
        Point("poisson40", 40, 240, 64, rate=_POISSON_RATE),
        Point("sat64", 64, 256, 200, timing=FAST),
    )
}
