"""A fault: what is done to the fleet, how often, and at which distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from load_tests.faults.fleet import Fleet

Strike = Callable[[Fleet, int], None]
"""Does it once, the n-th time; returns when it is over. A replacement need not be ready."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    title: str
    strike: Strike
    times: int
    every_s: float = 3.0
    """From the begin of one to the begin of the next, or more if it takes longer."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """What the fleet has beside or instead of the usual."""
