"""The models that workers serve or have served. Jobs for a model without workers wait."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.core.admission import check_model
from gateway.core.context import GatewayDep, KeyDep
from gateway.core.model_card import card_of
from gateway.description.schema import shows
from shared.job.errors import ModelNotFound, NoWorker

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", openapi_extra=shows("ModelList"))
async def list_models(gateway: GatewayDep, key: KeyDep) -> dict[str, Any]:
    """The models that the key may use, ready ones first.

    `flotilla` in each entry has the state of its pool.
    """
    await gateway.fleet.refresh()
    models = gateway.fleet.models.items()
    data = [card_of(gateway.fleet, model) for name, model in models if key.may_use(name)]
    data.sort(key=lambda card: not card["flotilla"]["ready"])
    return {"object": "list", "data": data}


@router.get(
    "/v1/models/{name:path}", openapi_extra=shows("Model", errors=(ModelNotFound, NoWorker))
)
async def get_model(name: str, gateway: GatewayDep, key: KeyDep) -> dict[str, Any]:
    """One entry of the list."""
    check_model(key, name)
    return card_of(gateway.fleet, await gateway.fleet.model(name))
