"""A fault: what is done to the fleet, how often, and how far apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from load_tests.faults.fleet import FaultFleet

Inject = Callable[[FaultFleet, int], None]
"""Injects the fault for the n-th time; returns when it is over. Replacements may still start."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    title: str
    inject: Inject
    times: int
    every_s: float = 3.0
    """Seconds from one injection to the next; more if an injection takes longer."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of FaultFleet that differ from its defaults."""
