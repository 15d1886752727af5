"""What operators have asked for of a pool, for the workers that it has and those that start later.

A worker reads it before it is ready and with every heartbeat, and changes what is different, so a
lost message or connection only delays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """What a pool's workers shall do."""

    paused: bool = False
    """Claim nothing."""
    intake_stopped: bool = False
    """Gateways refuse new requests for the pool."""
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hold these adapters: name -> options of `load_lora_adapter`."""


class Switches(NamedTuple):
    """Pools that do not work as usual."""

    paused: frozenset[str]
    """Their workers claim nothing."""
    intake_stopped: frozenset[str]
    """Gateways refuse new requests for them."""
