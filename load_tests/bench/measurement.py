"""What a run brings home: raw measurements of a machine on a day, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from load_tests.clients.load_client import Result

VERSION = 1


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
    client: Result
    cpu_s: dict[str, float]
    """Seconds on a CPU by process."""
    roles: dict[str, str]
    """Process -> `front` or `engine`."""
    redis: dict[str, float] = field(default_factory=dict)
    """How much Redis' counters grew: `net_input_bytes`, `net_output_bytes`, `commands`, and the
    calls of each command. Commands inside scripts count too."""
    load_average: float = 0.0
    """Of the last minute, before the point."""
    stolen: float = 0.0
    """Share of the machine's CPU time that its host gave to others meanwhile."""

    @property
    def units(self) -> int:
        return max(1, self.client.tokens if self.unit == "token" else self.client.done)

    @property
    def total_us(self) -> float:
        """CPU of all processes per unit."""
        return self._us(list(self.cpu_s))

    @property
    def front_us(self) -> float:
        """CPU of everything before the engine host per unit."""
        return self._us([label for label in self.cpu_s if self.roles[label] == "front"])

    def process_us(self, label: str) -> float:
        """CPU of one process per unit; 0 if the system has none of that name."""
        return self._us([label])

    def _us(self, labels: list[str]) -> float:
        return 1e6 * sum(self.cpu_s.get(label, 0.0) for label in labels) / self.units


@dataclass(frozen=True, slots=True)
class Results:
    """One run."""

    machine: dict[str, Any]
    measurements: list[Measurement]
    stream_memory: dict[str, dict[str, float]] = field(default_factory=dict)
    """System -> process -> private bytes that one open, silent stream takes."""
    log_bytes: dict[str, float] = field(default_factory=dict)
    """System -> bytes of Redis memory that a token takes in its job's log."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")


def load_results(path: Path) -> Results:
    """Raises OSError, ValueError."""
    return parse_results(json.loads(path.read_text()))


def parse_results(data: Mapping[str, Any]) -> Results:
    """Raises ValueError."""
    if data.get("version") != VERSION:
        raise ValueError(f"results of version {VERSION} are wanted, not {data.get('version')}")
    measurements = [
        Measurement(**{**item, "client": Result(**item["client"])}) for item in data["measurements"]
    ]
    return Results(data["machine"], measurements, data["stream_memory"], data["log_bytes"])
