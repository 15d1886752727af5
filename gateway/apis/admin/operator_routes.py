"""Routes for operators: pools, and actions that all workers of a pool carry out.

Only an operator's key may use them (gateway/http/middleware.py). Each action has two routes: one
under /admin/pools, which answers with each worker's result, and one with vLLM's name, parameters
and answer, for tools made for a single server; `?pool=` names the pool where there are several.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from gateway.apis.admin.broadcast import Operation
from gateway.apis.admin.operation_object import engine_answer, failure, own_answer
from gateway.apis.admin.operation_schemas import OPTIONS_BODY, options_of
from gateway.apis.admin.operator_calls import OperatorCalls
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.operator_body import optional_body, taken_reason
from gateway.description.schema import TEXT, Kinds, errors_in, obj, shows, takes
from gateway.http.error_response import error_response
from gateway.http.query import known_only
from shared.api.operator_actions import (
    ACTIONS,
    DRAIN,
    PATHS,
    check_options,
    read_words,
)
from shared.job.errors import (
    BadRequest,
    ModelInUse,
    ModelNotFound,
    NotFound,
    NoWorker,
    OperationFailed,
    WorkerNotReady,
)

router = APIRouter(tags=["operators"])
_ERRORS: Kinds = (NotFound, NoWorker, OperationFailed, *OperationFailed.__subclasses__())


@router.get("/admin/pools", dependencies=[known_only], openapi_extra=shows("PoolList"))
async def list_pools(gateway: GatewayDep) -> dict[str, Any]:
    """All pools: workers, models and adapters, and what operators have asked for."""
    await gateway.fleet.refresh()
    pools = [await _pool_object(gateway, pool) for pool in gateway.of(OperatorCalls).pools()]
    return {"object": "list", "data": pools}


@router.get("/admin/pools/{pool}", dependencies=[known_only], openapi_extra=shows("Pool"))
async def get_pool(pool: str, gateway: GatewayDep) -> dict[str, Any]:
    """One pool."""
    return await _pool_object(gateway, await gateway.of(OperatorCalls).pool(pool))


@router.post(
    "/admin/pools/{pool}/{action}",
    dependencies=[known_only],
    openapi_extra=shows("Operation", errors=_ERRORS) | OPTIONS_BODY,
)
async def operate(
    pool: str,
    action: Annotated[str, Path(json_schema_extra={"enum": list(ACTIONS)})],
    request: Request,
    gateway: GatewayDep,
    operator: KeyDep,
) -> Response:
    """Have all workers of a pool carry out an action; the body, if any, holds its options as JSON.

    Answers when all have answered: 200 if all have done it, else an error, and each worker's
    result under `operation`.
    """
    row = ACTIONS.get(action)
    if row is None:
        known = ", ".join(ACTIONS)
        raise NotFound(f"There is no action {action[:64]!r}; actions: {known}.")
    name = await gateway.of(OperatorCalls).pool(pool)
    reason, given = taken_reason(await optional_body(request, gateway))
    options = check_options(row, given)
    done = await gateway.of(OperatorCalls).call(name, row, options, operator, reason)
    return operation_answer(request, gateway, done)


@router.post(
    "/admin/workers/{worker}/drain",
    dependencies=[known_only],
    openapi_extra=shows("Operation", errors=(*_ERRORS, WorkerNotReady)) | OPTIONS_BODY,
)
async def drain(worker: str, request: Request, gateway: GatewayDep, operator: KeyDep) -> Response:
    """Have one worker hand its jobs over to others, or finish them, and end.

    Answers when it has begun. The process's supervisor decides whether it starts a new one.
    """
    reason, given = taken_reason(await optional_body(request, gateway))
    check_options(DRAIN, given)
    done = await gateway.of(OperatorCalls).drain(worker, operator, reason)
    return operation_answer(request, gateway, done)


@router.delete(
    "/admin/models/{name:path}",
    dependencies=[known_only],
    openapi_extra=shows("ForgottenModel", errors=(ModelNotFound, ModelInUse))
    | takes(obj("", reason=TEXT), required=False),
)
async def forget_model(
    name: str, request: Request, gateway: GatewayDep, operator: KeyDep
) -> dict[str, Any]:
    """Remove a model without workers, jobs and open batches from the list of models.

    A worker that starts with it makes it known again.
    """
    reason, _ = taken_reason(await optional_body(request, gateway))
    await gateway.of(OperatorCalls).forget(name, operator, reason)
    return {"id": name, "object": "model", "deleted": True}


async def _with_vllms_name(request: Request, gateway: GatewayDep, operator: KeyDep) -> Response:
    row = PATHS[request.url.path]
    words = _words(request)
    pool = words.pop("pool", [None])[-1]
    if row.in_query:
        options = read_words(row, words)
    elif words:
        raise BadRequest(f"Unknown query parameter {next(iter(words))[:64]!r}; this has: pool.")
    else:
        options = check_options(row, await optional_body(request, gateway))
    name = await gateway.of(OperatorCalls).pool(pool)
    done = await gateway.of(OperatorCalls).call(name, row, options, operator)
    return engine_answer(done) if not done.failed else operation_answer(request, gateway, done)


def operation_answer(request: Request, gateway: Gateway, operation: Operation) -> Response:
    """The operation, with an error beside it if workers have not done it."""
    error = failure(operation)
    if error is not None:
        error_response(error, gateway.metrics, request.scope)  # counts it, and notes its code
    return own_answer(operation, error)


def _words(request: Request) -> dict[str, list[str]]:
    query = request.query_params
    return {name: query.getlist(name) for name in query}


async def _pool_object(gateway: Gateway, pool: str) -> dict[str, Any]:
    desired = await gateway.of(OperatorCalls).desired(pool)
    models = gateway.fleet.models.values()
    return {
        "id": pool,
        "object": "pool",
        **desired.switches._asdict(),
        "models": sorted(model.name for model in models if model.pool == pool),
        "adapters": {name: options["lora_path"] for name, options in desired.adapters.items()},
        "workers": [
            {
                "id": worker.id,
                "state": worker.state,
                "reason": worker.reason,
                "models": list(worker.models),
                "slots": worker.slots,
                "running": worker.running,
            }
            for worker in gateway.fleet.workers_of(pool)
        ],
    }


for each in ACTIONS.values():
    router.add_api_route(
        each.path,
        _with_vllms_name,
        methods=[each.method],
        summary=each.summary,
        response_model=None,
        openapi_extra=options_of(each),
        responses=errors_in(*_ERRORS),
    )
