"""One row of the table of hostile requests: what other clients noticed, and its limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.harness.table import Table

GAP_MS = 100.0
"""Longest silence of another tenant's stream beyond that of the rows for comparison."""
GROWTH_MB = 200.0
"""Growth of a gateway's or a worker's resident memory at its peak."""
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


def broken(row: HostileRow, idle_ms: float) -> list[str]:
    """Return the limits that a row breaks, in words. `idle_ms`: the baseline's longest silence."""
    found = []
    if row.stall_ms > idle_ms + GAP_MS:
        found.append(
            f"another stream was silent for {row.stall_ms:.0f} ms, the limit is "
            f"{idle_ms:.0f} + {GAP_MS:.0f}"
        )
    found += [
        f"the {label} grew by {row.grown_mb[label]:.0f} MB, the limit is {GROWTH_MB:.0f}"
        for label in ("gateway", "worker")
        if row.grown_mb[label] > GROWTH_MB
    ]
    if row.failures:
        found.append(f"calls of other clients failed: {', '.join(row.failures)}")
    if row.expected not in row.response:
        found.append(f"the response is {row.response!r}, without {row.expected!r}")
    return found


def hostile_table(rows: Sequence[HostileRow], after_s: float) -> Table:
    """Return the table with a row per request."""

    def grown(label: str) -> list[str]:
        return [f"{row.grown_mb[label]:.0f} ({row.kept_mb[label]:.0f})" for row in rows]

    columns = {
        "request": [row.title for row in rows],
        "response": [row.response for row in rows],
        "longest stall of\nanother stream ms": [f"{row.stall_ms:.0f}" for row in rows],
        "slowest probe\nms": [f"{row.probe_ms:.0f}" for row in rows],
        **{f"{label}\n+MB (after {after_s:.0f} s)": grown(label) for label in _LABELS},
        "other clients' failures": [
            ", ".join(f"{n} {what}" for what, n in row.failures.items()) or "0" for row in rows
        ],
    }
    return Table.of_columns("What one client's requests do to other clients", columns)
