"""What a hostile request may cost others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from load_tests.faults.hostile.row import HostileRow

GAP_MS = 100.0
"""Longest silence of another tenant's stream beyond that of the rows for comparison."""
GROWTH_MB = 200.0
"""Growth of a gateway's or a worker's resident memory at its peak."""
_LIMITED = ("gateway", "worker")


def baseline_ms(rows: Iterable[HostileRow]) -> float:
    """Return the longest silence in the rows for comparison; 0 if there are none."""
    return max((row.stall_ms for row in rows), default=0.0)


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
        for label in _LIMITED
        if row.grown_mb[label] > GROWTH_MB
    ]
    if row.failures:
        found.append(f"calls of other clients failed: {', '.join(row.failures)}")
    if row.expected not in row.response:
        found.append(f"the response is {row.response!r}, without {row.expected!r}")
    return found
