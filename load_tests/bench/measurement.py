"""The raw measurements of a run, as they are stored in a JSON file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from load_tests.clients.load_client import LoadResult


@dataclass(frozen=True, slots=True)
class Measurement:
    """One system at one point in one round."""

    system: str
    point: str
    round: int
    unit: Literal["token", "request"]
    """What CPU time is divided by."""
    step_s: float
    """The engine's shortest time to a first token at this point."""
    client: LoadResult
    cpu_s: dict[str, float]
    """CPU seconds by process label."""
    roles: dict[str, str]
    """`front` or `engine` by process label."""
    redis: dict[str, float] = field(default_factory=dict)
    """Growth of Redis' counters: `net_input_bytes`, `net_output_bytes`, `commands`, and the calls
    of each command, including those inside scripts."""
    load_average: float = 0.0
    """The machine's one-minute load average before the measurement."""
    stolen: float = 0.0
    """Share of CPU time (0 to 1) that the machine's host gave to others meanwhile (steal)."""

    @property
    def units(self) -> int:
        """Tokens or requests that were completed, at least 1."""
        return max(1, self.client.tokens if self.unit == "token" else self.client.done)

    @property
    def total_us(self) -> float:
        """CPU microseconds of all processes per unit."""
        return self._us(list(self.cpu_s))

    @property
    def front_us(self) -> float:
        """CPU microseconds of all processes but the engine's per unit."""
        return self._us([label for label in self.cpu_s if self.roles[label] == "front"])

    def process_us(self, label: str) -> float:
        """Return CPU microseconds of one process per unit; 0 if there is none of that label."""
        return self._us([label])

    def _us(self, labels: list[str]) -> float:
        return 1e6 * sum(self.cpu_s.get(label, 0.0) for label in labels) / self.units


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements of one run."""

    machine: dict[str, Any]
    measurements: list[Measurement]
    stream_memory: dict[str, dict[str, float]] = field(default_factory=dict)
    """Private bytes that one open stream without tokens takes, by system and process."""
    log_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes of Redis memory that a token takes in its job's log, by system."""
