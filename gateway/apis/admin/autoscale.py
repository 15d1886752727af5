"""How many workers a pool should have, for KEDA's metrics-api scaler, and the range of that."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.core.context import GatewayDep
from gateway.core.fleet_view import FleetView
from gateway.description.schema import errors_in
from gateway.http.query import known_only
from gateway.ops.autoscaler.scale_object import decision
from shared.fleet.scale_decisions import Scale, WorkerRange
from shared.job.errors import AutoscalerSilent, BadRequest, NotFound

router = APIRouter(tags=["operators"], dependencies=[known_only])

_MAX_WORKERS = 10_000


@router.get("/autoscale/{name:path}", responses=errors_in(AutoscalerSilent))
async def get_wanted(name: str, gateway: GatewayDep) -> dict[str, Any]:
    """The decision for a pool, by the pool's or a model's name; KEDA's `valueLocation` is `wanted`.

    503 while there is no fresh decision: KEDA then leaves the workers as they are.
    """
    fleet = gateway.fleet
    scale = _scale_of(fleet, name)
    if scale.stale(fleet.now_s()):
        silent_s = fleet.now_s() - scale.at_s
        raise AutoscalerSilent(
            f"The last decision for this pool is {silent_s:.0f} s old; does the autoscaler run?"
        )
    return decision(scale, fleet.now_s())


@router.put("/admin/autoscale/{name:path}", responses=errors_in(AutoscalerSilent))
async def set_range(
    name: str,
    gateway: GatewayDep,
    least: Annotated[int | None, Query(alias="min", ge=0, le=_MAX_WORKERS)] = None,
    most: Annotated[int | None, Query(alias="max", ge=1, le=_MAX_WORKERS)] = None,
) -> dict[str, Any]:
    """Set between how many workers the autoscaler chooses, until the settings have another range.

    `name`: of a pool or a model. What is not given stays.
    """
    scale = _scale_of(gateway.fleet, name)
    least = scale.limits.min if least is None else least
    most = max(1, least, scale.limits.max) if most is None else most
    if most < least:
        raise BadRequest("`max` must be at least `min`.", "max")
    chosen = WorkerRange(least, most, scale.configured)
    await gateway.fleet.scale_store.ranges.set(scale.pool, chosen)
    return {"pool": scale.pool, "min": least, "max": most}


def _scale_of(fleet: FleetView, name: str) -> Scale:
    """The last decision for a pool. Raises NotFound and AutoscalerSilent."""
    pool = fleet.models[name].pool if name in fleet.models else name
    if pool not in {model.pool for model in fleet.models.values()}:
        raise NotFound(f"There is no pool or model named {name[:100]!r}.")
    scale = fleet.scales.get(pool)
    if scale is None:
        raise AutoscalerSilent(
            "The autoscaler has decided nothing for this pool; name it in FLOTILLA_AUTOSCALE."
        )
    return scale
