"""How many workers a pool should have: read by KEDA's metrics-api scaler, which starts them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.core.context import GatewayDep
from gateway.description.schema import errors_in
from gateway.http.query import known_only
from gateway.ops.autoscaler.scale_object import decision
from shared.job.errors import AutoscalerSilent, NotFound
from shared.job.lanes import pool_of

router = APIRouter(tags=["operators"], dependencies=[known_only])


@router.get("/autoscale/{name:path}", responses=errors_in(AutoscalerSilent))
async def get_wanted(name: str, gateway: GatewayDep) -> dict[str, Any]:
    """The decision for a pool, by the pool's or a model's name; KEDA's `valueLocation` is `wanted`.

    503 while there is no fresh decision: KEDA then leaves the workers as they are.
    """
    fleet = gateway.fleet
    pool = pool_of(fleet.models[name].pool if name in fleet.models else name)
    if pool not in {pool_of(model.pool) for model in fleet.models.values()}:
        raise NotFound(f"There is no pool or model named {name[:100]!r}.")
    scale = fleet.scales.get(pool)
    if scale is None:
        raise AutoscalerSilent(
            "The autoscaler has decided nothing for this pool; name it in FLOTILLA_AUTOSCALE."
        )
    if scale.stale(fleet.now_s()):
        silent_s = fleet.now_s() - scale.at_s
        raise AutoscalerSilent(
            f"The last decision for this pool is {silent_s:.0f} s old; does the autoscaler run?"
        )
    return decision(scale, fleet.now_s())
