"""The models that workers serve or have served. Jobs for a model without workers wait."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.apis.context import Gateway, GatewayDep
from gateway.http.query import known_only
from shared.fleet.registry import ModelInfo
from shared.job.adapter_queues import pool_of

router = APIRouter(tags=["OpenAI"], dependencies=[known_only])


@router.get("/v1/models/", include_in_schema=False)
@router.get("/v1/models")
async def list_models(gateway: GatewayDep) -> dict[str, Any]:
    """OpenAI's list of models, of all pools. `flotilla` in each entry says whether it is ready."""
    await gateway.fleet.refresh()
    models = gateway.fleet.models.values()
    return {"object": "list", "data": [card_of(gateway, model) for model in models]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, gateway: GatewayDep) -> dict[str, Any]:
    """One entry of the list."""
    return card_of(gateway, await gateway.fleet.model(name))


def card_of(gateway: Gateway, model: ModelInfo) -> dict[str, Any]:
    """VLLM's own card of a model, with what the fleet has for it."""
    workers = gateway.fleet.workers_of(model.pool)
    serving = [worker for worker in workers if worker.state.serving]
    fleet = {
        "pool": pool_of(model.pool),
        "ready": bool(serving),
        "wait_reason": gateway.fleet.wait_reason(model.pool),
        "workers_ready": len(serving),
        "slots": sum(worker.slots for worker in serving),
        "engines": sorted({worker.engine for worker in workers}),
    }
    return model.card | {"flotilla": fleet}
