"""Is this process alive, can it take requests, and what has it seen."""

from __future__ import annotations

import logging

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from gateway.context import Gateway, TheGateway
from shared import keys
from shared.redis import RedisError
from shared.states import JobState

router = APIRouter(tags=["health"])
log = logging.getLogger("flotilla.gateway")


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """200 while the process turns; looks at nothing else, so that nothing else gets it killed."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(gateway: TheGateway) -> Response:
    """200 if requests can be taken, else 503 with the check that fails."""
    checks = {"redis": await _writable(gateway), "relay": ""}
    if not gateway.relay.connected.is_set():
        checks["relay"] = "not subscribed"
    ready = not any(checks.values())
    workers = {worker.id: worker.state for worker in gateway.fleet.workers}
    return JSONResponse(
        {
            "status": "ready" if ready else "not ready",
            "checks": {name: problem or "ok" for name, problem in checks.items()},
            "workers": workers,
        },
        200 if ready else 503,
    )


async def _writable(gateway: Gateway) -> str:
    """Why Redis can't be written, if so. A PING would not notice a full memory."""
    try:
        await gateway.queue.redis.set(keys.PROBE, gateway.id, px=10_000)
    except (RedisError, OSError) as error:
        return str(error)[:200] or type(error).__name__
    return ""


@router.get("/metrics")
async def metrics(gateway: TheGateway) -> Response:
    """Prometheus: what this process counted, and the state of the fleet as Redis has it."""
    try:
        await _read_fleet(gateway)
    except (RedisError, OSError) as error:
        log.warning("fleet metrics not read: %s", error)
    return Response(generate_latest(gateway.prometheus), media_type=CONTENT_TYPE_LATEST)


async def _read_fleet(gateway: Gateway) -> None:
    m = gateway.metrics
    depths = await gateway.queue.depths()
    for gauge in (m.waiting, m.oldest, m.jobs, m.workers):
        gauge.clear()
    for depth in depths:
        m.waiting.labels(depth.pool, depth.lane).set(depth.waiting)
        m.oldest.labels(depth.pool, depth.lane).set(depth.oldest_s)
        m.jobs.labels(depth.pool, JobState.QUEUED).inc(depth.waiting)
        m.jobs.labels(depth.pool, JobState.IN_PROGRESS).inc(depth.in_progress)
    for worker in gateway.fleet.workers:
        m.workers.labels(worker.pool, worker.state).inc()
