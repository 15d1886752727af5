"""A worker's announcement, for tests of what reads it."""

from __future__ import annotations

from typing import Any

from shared.fleet.registry import WorkerInfo
from shared.job.states import WorkerState

NOW_S = 1_800_000_000.0


def worker(worker_id: str = "w-1", **changes: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "id": worker_id,
        "pool": "pool",
        "state": WorkerState.READY,
        "engine": "simulated",
        "models": ("m",),
        "slots": 8,
        "running": 0,
        "jobs": 0,
        "kv_usage": 0.0,
        "host": "host",
        "pid": 1,
        "version": "0.1.0",
    }
    return WorkerInfo(**values | changes)
