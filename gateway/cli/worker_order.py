"""The order of workers in every list: the unhealthy ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def urgency(worker: Mapping[str, Any]) -> tuple[bool, bool, str, str]:
    """The key to sort workers of an overview by."""
    healthy = worker["state"] in ("ready", "busy")
    return (not worker["lost"], healthy, worker["pool"], worker["id"])
