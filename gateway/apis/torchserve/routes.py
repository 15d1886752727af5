"""TorchServe's management calls that have a meaning here; TorchServe has them on port 8081.

The others are refused (gateway/http/refused_routes.py). Predictions: predictions.py.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from gateway.apis.torchserve.prediction import model_name
from gateway.apis.torchserve.prediction_schemas import PREDICTION_SCHEMAS
from gateway.apis.torchserve.predictions import PREDICTIONS
from gateway.apis.torchserve.torchserve_model import described, listed, name_of, version_of
from gateway.core.admission import check_model
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.model_card import card_of
from gateway.description.api import Api
from gateway.description.schema import Kinds, errors_in, shows
from gateway.http.query import known_only
from shared.fleet.registry import ModelInfo
from shared.fleet.scale_decisions import WorkerRange
from shared.job.errors import AutoscalerSilent, BadRequest, ModelNotFound, NotSupported, NoWorker
from shared.store.redis.depths import depths

router = APIRouter(tags=["TorchServe"], dependencies=[known_only])

_MAX_WORKERS = 10_000
_SYNCHRONOUS_S, _POLL_S = 120.0, 0.5
_ALL = "/all"
_PROCESSING = {"status": "Processing worker updates..."}

_NO_MODEL: Kinds = (ModelNotFound, NoWorker)

Workers = Annotated[int | None, Query(ge=0, le=_MAX_WORKERS)]


@router.options("/")
async def describe(request: Request) -> Response:
    """The API's description, as /openapi.json."""
    return JSONResponse(request.app.openapi())


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
    return more | {"models": [listed(model) for model in models[next_page_token:end]]}


@router.get("/models/{model:path}", responses=errors_in(*_NO_MODEL, NotSupported))
async def describe_model(
    model: str, gateway: GatewayDep, key: KeyDep, customized: bool = False
) -> list[dict[str, Any]]:
    """A model, or one version of it, with its workers and queue. `/models/{model}/all`: all."""
    name = model.removesuffix(_ALL)
    found = await _model(gateway, name)
    check_model(key, found.name, found.served_name)
    models = [found]
    if name != model:
        models = gateway.fleet.names.versions(name_of(found)) or models
    lanes = await depths(gateway.queue)
    return [
        described(
            each,
            gateway.fleet.workers_of(each.pool),
            gateway.fleet.scales.get(each.pool),
            waiting=sum(lane.waiting for lane in lanes if lane.pool == each.pool),
            room=gateway.submitter.max_depth(each.pool) * gateway.queue.shards,
            customized=customized,
        )
        for each in models
    ]


@router.put("/models/{model:path}/set-default", responses=errors_in(*_NO_MODEL))
async def set_default(model: str, gateway: GatewayDep) -> dict[str, str]:
    """Send the requests that name no version of a model to this one, whatever the weights are."""
    found = await _model(gateway, model)
    name = name_of(found)
    if found.version:
        await gateway.fleet.set_default_version(name, found.version)
    status = f'Default version successfully updated for model "{name}" to "{version_of(found)}"'
    return {"status": status}


@router.put("/models/{model:path}", responses=errors_in(*_NO_MODEL, AutoscalerSilent))
async def scale_workers(
    model: str,
    gateway: GatewayDep,
    min_worker: Workers = None,
    max_worker: Workers = None,
    synchronous: bool = False,
    timeout: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """Set how many workers the autoscaler gives a model; it drains those that are too many.

    202, or 200 with `synchronous=true` once as many workers are ready. `timeout` has no effect: a
    drained worker hands its jobs over to others.
    """
    found = await _model(gateway, model)
    chosen = _range(gateway, found, min_worker, max_worker)
    await gateway.fleet.set_worker_range(found.pool, chosen)
    if not synchronous or not await _scaled(gateway, found.pool, chosen):
        return JSONResponse(_PROCESSING, 202)
    ready, name = _ready(gateway, found.pool), name_of(found)
    status = f"Workers scaled to {ready} for model: {name}, version: {version_of(found)}"
    return JSONResponse({"status": status})


def _range(
    gateway: Gateway, model: ModelInfo, min_worker: int | None, max_worker: int | None
) -> WorkerRange:
    """The range in a request. Raises BadRequest, AutoscalerSilent."""
    least = 1 if min_worker is None else min_worker
    most = max(1, least) if max_worker is None else max_worker
    if most < max(1, least):
        raise BadRequest("`max_worker` must be at least 1 and at least `min_worker`.", "max_worker")
    scale = gateway.fleet.scales.get(model.pool)
    if scale is None:
        raise AutoscalerSilent(
            f"The autoscaler does not scale {model.name}; start the fleet with a range of workers."
        )
    return WorkerRange(least, most, scale.configured)


def _ready(gateway: Gateway, pool: str) -> int:
    return sum(worker.state.serving for worker in gateway.fleet.workers_of(pool))


async def _scaled(gateway: Gateway, pool: str, chosen: WorkerRange) -> bool:
    """Wait until the number of ready workers is in the range; False after two minutes."""
    until = asyncio.get_running_loop().time() + _SYNCHRONOUS_S
    while asyncio.get_running_loop().time() < until:
        if chosen.least <= _ready(gateway, pool) <= chosen.most:
            return True
        await asyncio.sleep(_POLL_S)
    return False


async def _model(gateway: Gateway, model: str) -> ModelInfo:
    """The model of a path. Raises ModelNotFound, NoWorker, and StoreError."""
    name = model_name(model, gateway.fleet.models)
    # Of several versions the default one; a request would get one by weight.
    return gateway.fleet.models.get(name) or await gateway.fleet.model(name)


API = Api(routers=(router,), plain=(PREDICTIONS,), schemas=PREDICTION_SCHEMAS)
