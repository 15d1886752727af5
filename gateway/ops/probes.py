"""Probes: whether this process works, and whether it can queue jobs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway.core.context import GatewayDep
from gateway.http.auth import Authenticator
from gateway.ops.readiness import readiness

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz(gateway: GatewayDep) -> Response:
    """Liveness: 503 if only a restart can help, because a background task has ended; else 200.

    It checks nothing outside of this process: without Redis a restart does not help.
    """
    if gateway.tasks.ended:
        return JSONResponse({"status": "failed", "ended_tasks": gateway.tasks.ended}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/health")
async def health(gateway: GatewayDep) -> Response:
    """VLLM's name for `/readyz`: the same status code, without a body."""
    return Response(status_code=(await readiness(gateway)).http_status)


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(gateway: GatewayDep) -> Response:
    """SageMaker's and TorchServe's name for `/readyz`: the same status code, TorchServe's body."""
    status = (await readiness(gateway)).http_status
    return JSONResponse({"status": "Healthy" if status == 200 else "Unhealthy"}, status)


@router.get("/readyz")
async def readyz(request: Request, gateway: GatewayDep) -> Response:
    """Readiness: 200 if jobs can be queued, else 503; `missing` says in words what is wrong.

    `status` is `ready` if calls are answered now, `no worker` (200, too) if they are queued until
    a worker is ready, and `not ready` (503) if they would fail. `models` has the reason for each
    model that no worker serves now. Only `status` without an operator's key, and where there are no
    keys, for other machines than the gateway's.
    """
    found = await readiness(gateway)
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.may_see_all(request.scope):
        return JSONResponse({"status": found.status}, found.http_status)
    body = {
        "status": found.status,
        "missing": found.missing,
        "checks": {name: problem or "ok" for name, problem in found.checks.items()},
        "models": {name: reason or "ok" for name, reason in found.models.items()},
        "workers": {worker.id: worker.state for worker in gateway.fleet.workers},
    }
    return JSONResponse(body, found.http_status)
