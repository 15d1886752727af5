"""Is this process alive, can it take requests, and what has it seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.metadata import version
from math import nan
from typing import Any

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from gateway.context import Gateway, GatewayDep
from shared.platform.redis_client import RedisError
from shared.protocol import keys
from shared.protocol.states import JobState
from shared.queue.depths import depths
from shared.queue.job_queue import JobQueue

router = APIRouter(tags=["health"])
log = logging.getLogger("flotilla.gateway")

_VERSION = version("flotilla")  # looking it up reads files


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """200 while the process turns; looks at nothing else, so that nothing else gets it killed."""
    return {"status": "ok"}


@router.get("/health")
@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def health(gateway: GatewayDep) -> Response:
    """VLLM's names for `/readyz`: 200 if requests can be taken, else 503; no body."""
    return Response(status_code=503 if any((await _checks(gateway)).values()) else 200)


@router.get("/version")
async def get_version() -> dict[str, str]:
    """Of this gateway. Each worker's, vLLM's included, is in `GET /v1/models` (`engines`)."""
    return {"version": _VERSION}


@router.get("/readyz")
async def readyz(gateway: GatewayDep) -> Response:
    """200 if requests can be taken, else 503 with the check that fails."""
    checks = await _checks(gateway)
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


async def _checks(gateway: Gateway) -> dict[str, str]:
    """What must work for requests to be taken, and what is wrong with it."""
    return {
        "redis": await _redis(gateway),
        "eviction": gateway.eviction.problem,
        "relay": "" if _reached(gateway) else "not subscribed",
    }


def _reached(gateway: Gateway) -> bool:
    return any(gateway.relay.is_subscribed(shard) for shard in range(gateway.queue.shards))


async def _redis(gateway: Gateway) -> str:
    """Why no job can be taken, if so: it takes the home server, and one for the job."""
    servers = gateway.queue.servers
    asked = list(dict.fromkeys([*servers.all, servers.primary]))
    problems = await asyncio.gather(*(_problem(redis, gateway.id) for redis in asked))
    of_shards = problems[: len(servers)]
    for place, problem in enumerate(of_shards):
        gateway.metrics.redis_writable.labels(str(place)).set(not problem)
    return problems[asked.index(servers.primary)] or min(of_shards, key=bool)


async def _problem(redis: Any, gateway_id: str) -> str:
    """Why it can't be written, if so. A PING would not notice a full memory."""
    try:
        await redis.set(keys.PROBE, gateway_id, px=10_000)
    except (RedisError, OSError) as error:
        return str(error)[:200] or type(error).__name__
    return ""


@router.get("/metrics")
async def metrics(gateway: GatewayDep) -> Response:
    """Prometheus: what this process counted, and the state of the fleet as Redis has it."""
    # At once: a Redis that does not answer must not cost a scrape three timeouts.
    checks, _, _ = await asyncio.gather(
        _checks(gateway), _read_fleet(gateway), _read_redis(gateway)
    )
    for check, problem in checks.items():
        gateway.metrics.ready.labels(check).set(not problem)
    return Response(generate_latest(gateway.prometheus), media_type=CONTENT_TYPE_LATEST)


async def _read_fleet(gateway: Gateway) -> None:
    """What only Redis knows. Where it does not answer there is no value, rather than an old one."""
    m, queue = gateway.metrics, gateway.queue
    try:
        lanes, letters, maintenance = await asyncio.gather(
            depths(queue),
            _dead_letters(queue),
            queue.servers.primary.hgetall(keys.MAINTENANCE_RUNS),
        )
        workers = gateway.fleet.workers
    except (RedisError, OSError) as error:
        log.warning("fleet metrics not read: %s", error)
        lanes, letters, maintenance, workers = [], nan, {}, []
    for gauge in (m.waiting, m.oldest, m.jobs, m.workers, m.maintenance):
        gauge.clear()
    m.dead_letters.set(letters)
    for depth in lanes:
        m.waiting.labels(depth.pool, depth.lane).set(depth.waiting)
        m.oldest.labels(depth.pool, depth.lane).set(depth.oldest_s)
        m.jobs.labels(depth.pool, JobState.QUEUED).inc(depth.waiting)
        m.jobs.labels(depth.pool, JobState.IN_PROGRESS).inc(depth.in_progress)
    for worker in workers:
        m.workers.labels(worker.pool, worker.state).inc()
    for task, done_s in maintenance.items():
        m.maintenance.labels(task.decode()).set(int(done_s))
    _tell_scales(gateway)


def _tell_scales(gateway: Gateway) -> None:
    m, fleet = gateway.metrics, gateway.fleet
    for gauge in (m.wanted, m.bounds, m.expected_wait, m.decision_age):
        gauge.clear()
    for pool, scale in fleet.scales.items():
        m.decision_age.labels(pool).set(fleet.now_s() - scale.at_s)
        if scale.stale(fleet.now_s()):
            continue
        m.wanted.labels(pool).set(scale.wanted)
        m.bounds.labels(pool, "min").set(scale.limits.min)
        m.bounds.labels(pool, "max").set(scale.limits.max)
        if scale.wait_s is not None:
            m.expected_wait.labels(pool).set(scale.wait_s)


async def _dead_letters(queue: JobQueue) -> float:
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).xlen(keys.dead_letters(shard))
    return float(sum(await pipeline.execute()))


async def _read_redis(gateway: Gateway) -> None:
    servers = gateway.queue.servers
    gateway.metrics.redis.infos = await asyncio.gather(*map(_info, servers.all))


async def _info(redis: Any) -> Mapping[str, Any]:
    try:
        info: Mapping[str, Any] = await redis.info()
    except (RedisError, OSError):
        return {}
    return info
