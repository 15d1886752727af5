"""Settings that are not public, as arguments of Stack's methods: they may become constants."""

from __future__ import annotations

import json
from typing import Any

PATIENT: dict[str, Any] = {"lease_s": 60}
"""No worker counts as lost, neither on a busy machine nor while it is stopped."""
WARM_ONLY: dict[str, Any] = {"placement": json.dumps({"patience_s": 60}), **PATIENT}
"""A warm worker may be late on a busy machine, but no other one takes its jobs."""
NO_CREDIT: dict[str, Any] = {"fair_shares": json.dumps({"lift": 1})}
"""A tenant that comes back begins where the one that was served least is."""
IMPATIENT_OF_BODIES: dict[str, Any] = {"body_timeout_s": 1}
IMPATIENT_OF_OPERATIONS: dict[str, Any] = {"operation_timeout_s": 5}
QUICK_SCALING: dict[str, Any] = {
    "autoscale_tick_s": 0.5,
    "autoscale_down_after_s": 2,
}


def patience(*, header_s: float = 60, write_s: float = 60) -> dict[str, Any]:
    """Settings of a gateway: how long a client may take to send a head, or read nothing."""
    return {"header_timeout_s": header_s, "write_timeout_s": write_s}
