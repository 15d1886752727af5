"""The API of operators; and `GET /admin/autoscale`, which any valid key may call."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.apis.admin import (
    audit_route,
    autoscale,
    fleet_views,
    key_routes,
    operator_routes,
    tenant_list,
)
from gateway.apis.admin.admin_schemas import ADMIN_SCHEMAS
from gateway.apis.admin.operation_schemas import OPERATION_SCHEMAS
from gateway.apis.admin.operator_calls import OperatorCalls
from gateway.core.context import Gateway, GatewayDep
from gateway.description.api import Api
from gateway.http.query import known_only
from gateway.ops.autoscaler.scale_object import whole

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])

_HISTORY = 20


@router.get("/autoscale")
async def get_autoscale(gateway: GatewayDep) -> dict[str, Any]:
    """Each autoscaled pool: wanted and actual workers, reasons, observations, last decisions."""
    fleet = gateway.fleet
    await fleet.refresh()
    pools = [
        whole(
            scale,
            fleet.workers_of(pool),
            await fleet.scale_store.history(pool, _HISTORY),
            fleet.now_s(),
        )
        for pool, scale in sorted(fleet.scales.items())
    ]
    return {"object": "list", "data": pools}


def _start(gateway: Gateway) -> None:
    gateway.add(OperatorCalls(gateway))


API = Api(
    routers=(
        autoscale.router,
        router,
        key_routes.router,
        audit_route.router,
        tenant_list.router,
        operator_routes.router,
        fleet_views.router,
    ),
    schemas=ADMIN_SCHEMAS | OPERATION_SCHEMAS,
    start=_start,
)
