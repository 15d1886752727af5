"""vLLM's routes `/version` and `/load`, answered for the fleet."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from gateway.core.context import GatewayDep
from shared.store.views import depths

router = APIRouter(tags=["fleet"])

_VERSION = version("flotilla")  # looking it up reads files


@router.get("/version")
async def get_version(gateway: GatewayDep) -> dict[str, Any]:
    """The gateway's version, and the number of workers with each version of an engine."""
    engines = Counter(worker.engine for worker in gateway.fleet.workers)
    return {"version": _VERSION, "engines": dict(sorted(engines.items()))}


@router.get("/load")
async def get_load(gateway: GatewayDep) -> dict[str, Any]:
    """The requests of the fleet that have not ended: `server_load`, as in vLLM, and by pool."""
    pools: dict[str, dict[str, int]] = {}
    for depth in await depths(gateway.queue):
        pool = pools.setdefault(depth.pool, {"running": 0, "waiting": 0})
        pool["running"] += depth.in_progress
        pool["waiting"] += depth.waiting
    return {"server_load": sum(sum(pool.values()) for pool in pools.values()), "pools": pools}
