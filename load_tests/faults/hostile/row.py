"""One row of the table of hostile requests: what other clients noticed of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.harness.table import Table

_LABELS = ("gateway", "redis", "worker")


@dataclass(frozen=True, slots=True)
class HostileRow:
    """What other clients noticed of one hostile request."""

    title: str
    response: str
    """What the server answered."""
    expected: str
    """What it must contain."""
    stall_ms: float
    """Longest time without data of another client's stream."""
    probe_ms: float
    """Slowest `GET /healthz`."""
    grown_mb: dict[str, float]
    """Growth of resident memory at its peak, by process."""
    kept_mb: dict[str, float]
    """The same some seconds after the request."""
    failures: dict[str, int]
    """Failed streams and probes of other clients, by reason."""


def hostile_table(rows: Sequence[HostileRow], after_s: float) -> Table:
    """Return the table with a row per request."""
    head = [
        "request",
        "response",
        "longest stall of\nanother stream ms",
        "slowest probe\nms",
        *(f"{label}\n+MB (after {after_s:.0f} s)" for label in _LABELS),
        "other clients' failures",
    ]
    cells = [
        [
            row.title,
            row.response,
            f"{row.stall_ms:.0f}",
            f"{row.probe_ms:.0f}",
            *(f"{row.grown_mb[label]:.0f} ({row.kept_mb[label]:.0f})" for label in _LABELS),
            ", ".join(f"{n} {what}" for what, n in row.failures.items()) or "0",
        ]
        for row in rows
    ]
    return Table("What one client's requests do to other clients", head, cells)
