"""The models that workers serve or have served. Jobs for a model without workers wait."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.core.context import GatewayDep
from gateway.core.model_card import card_of
from gateway.description.schema import shows
from gateway.http.query import known_only
from shared.job.errors import ModelNotFound, NoWorker

router = APIRouter(tags=["OpenAI"], dependencies=[known_only])


@router.get("/v1/models/", include_in_schema=False)
@router.get("/v1/models", openapi_extra=shows("ModelList"))
async def list_models(gateway: GatewayDep) -> dict[str, Any]:
    """OpenAI's list of models, of all pools. `flotilla` in each entry has the state of its pool."""
    await gateway.fleet.refresh()
    models = gateway.fleet.models.values()
    return {"object": "list", "data": [card_of(gateway.fleet, model) for model in models]}


@router.get(
    "/v1/models/{name:path}", openapi_extra=shows("Model", errors=(ModelNotFound, NoWorker))
)
async def get_model(name: str, gateway: GatewayDep) -> dict[str, Any]:
    """One entry of the list."""
    return card_of(gateway.fleet, await gateway.fleet.model(name))
