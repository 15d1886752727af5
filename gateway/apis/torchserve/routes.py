"""TorchServe's lists of models. Predictions: predictions.py."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.apis.torchserve.prediction import FIRST_VERSION, model_name
from gateway.apis.torchserve.predictions import PREDICTIONS
from gateway.core.admission import check_model
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.model_card import card_of
from gateway.description.api import Api
from gateway.description.schema import Kinds, errors_in, shows
from gateway.http.query import known_only
from shared.fleet.registry import ModelInfo
from shared.job.errors import ModelNotFound, NoWorker
from shared.job.states import WorkerState

router = APIRouter(tags=["TorchServe"], dependencies=[known_only])

_NO_MODEL: Kinds = (ModelNotFound, NoWorker)
_STATUS = {
    WorkerState.STARTING: "LOADING",
    WorkerState.DRAINING: "UNLOADING",
}


@router.get(
    "/predictions/{model:path}/v1/models", openapi_extra=shows("ModelList", errors=_NO_MODEL)
)
@router.post("/predictions/{model:path}/v1/models", include_in_schema=False)
async def list_own_models(model: str, gateway: GatewayDep, key: KeyDep) -> dict[str, Any]:
    """OpenAI's list with this model alone."""
    found = await _model(gateway, model)
    check_model(key, found.name, found.served_name)
    return {"object": "list", "data": [card_of(gateway.fleet, found)]}


@router.get("/models")
async def list_models(
    gateway: GatewayDep,
    key: KeyDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    next_page_token: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, Any]:
    """The models by name; `next_page_token=nextPageToken` continues while there is one."""
    await gateway.fleet.refresh()
    # A version of a name that has several is not an entry of its own.
    models = [
        model
        for name, model in sorted(gateway.fleet.models.items())
        if key.may_use(name)
        and (not model.version or name != f"{model.served_name}:{model.version}")
    ]
    end = next_page_token + limit
    more = {"nextPageToken": str(end)} if end < len(models) else {}
    shown = models[next_page_token:end]
    return more | {
        "models": [{"modelName": _name_of(model), "modelUrl": _url_of(model)} for model in shown]
    }


@router.get("/models/{model:path}", responses=errors_in(*_NO_MODEL))
async def describe_model(model: str, gateway: GatewayDep, key: KeyDep) -> list[dict[str, Any]]:
    """A model, or one version of it, with its workers."""
    found = await _model(gateway, model)
    check_model(key, found.name, found.served_name)
    workers, scale = gateway.fleet.workers_of(found.pool), gateway.fleet.scales.get(found.pool)
    shown = {
        "modelName": _name_of(found),
        "modelVersion": found.version or FIRST_VERSION,
        "modelUrl": _url_of(found),
        "engine": "vLLM",
        "runtime": "python",
        "minWorkers": scale.limits.min if scale else len(workers),
        "maxWorkers": scale.limits.max if scale else len(workers),
        "batchSize": max((worker.slots for worker in workers), default=0),
        "workers": [
            {"id": worker.id, "status": _STATUS.get(worker.state, "READY")} for worker in workers
        ],
    }
    return [shown]


async def _model(gateway: Gateway, model: str) -> ModelInfo:
    """The model of a path. Raises ModelNotFound, NoWorker, and StoreError."""
    name = model_name(model, gateway.fleet.models)
    # Of several versions the first one; a request would get one by weight.
    return gateway.fleet.models.get(name) or await gateway.fleet.model(name)


def _name_of(model: ModelInfo) -> str:
    """The model's name without its version."""
    return model.served_name or model.name


def _url_of(model: ModelInfo) -> str:
    return str(model.card.get("root") or model.name)


API = Api(routers=(router,), plain=(PREDICTIONS,))
