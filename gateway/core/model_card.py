"""A model as OpenAI's list shows it."""

from __future__ import annotations

from typing import Any

from gateway.core.fleet_view import FleetView
from shared.fleet.registry import ModelInfo


def card_of(fleet: FleetView, model: ModelInfo) -> dict[str, Any]:
    """VLLM's own card of a model, with the state of its pool as `flotilla`."""
    workers = fleet.workers_of(model.pool)
    serving = [worker for worker in workers if worker.state.serving]
    ours = {
        "pool": model.pool,
        "ready": bool(serving),
        "wait_reason": fleet.wait_reason(model.pool),
        "workers_ready": len(serving),
        "slots": sum(worker.slots for worker in serving),
        "engines": sorted({worker.engine for worker in workers}),
    }
    return model.card | {"flotilla": ours}
