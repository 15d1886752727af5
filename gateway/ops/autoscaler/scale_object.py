"""Serializes a pool's scale for the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from shared.fleet.registry import WorkerInfo
from shared.fleet.scale_decisions import Scale, ScalingEvent


def decision(scale: Scale, now_s: float) -> dict[str, Any]:
    """The decision alone. Times are by Redis' clock."""
    return {
        "pool": scale.pool,
        "model": scale.model,
        "wanted": scale.wanted,
        "reason": scale.reason,
        "decided_at": scale.at_s,
        "age_s": round(max(0.0, now_s - scale.at_s), 1),
        "silent": scale.stale(now_s),
    }


def whole(
    scale: Scale, workers: Iterable[WorkerInfo], history: Sequence[ScalingEvent], now_s: float
) -> dict[str, Any]:
    """The decision, the figures behind it, and the last changes, newest first."""
    return decision(scale, now_s) | {
        "workers": dict(Counter(str(worker.state) for worker in workers)),
        "limits": asdict(scale.limits),
        "inputs": asdict(scale.seen),
        "history": [asdict(scaling) for scaling in history],
    }
