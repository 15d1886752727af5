"""Routes of the use of the fleet: operators see all tenants, a tenant's key its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.apis.usage.usage_object import OwnLimits, OwnUsageTable, UsageTable, UsedLimits, csv_of
from gateway.apis.usage.usage_query import UsageAnswer, UsageQuery, answer_of, columns_of, range_of
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.limits_object import limits_object, used_objects
from gateway.description.api import Api
from gateway.http.body import in_thread
from gateway.http.query import known_only
from shared.store.usage import UsageRecords
from shared.tenants.api_key import ApiKey
from shared.tenants.rate_limits import NO_LIMITS, key_name, tenant_name

router = APIRouter(dependencies=[known_only])

_CSV = "text/csv"
_OWN_COLUMNS = ("day", "key", "model")
_COLUMNS = ("day", "tenant", "key", "model")

First = Annotated[date | None, Query(alias="from")]
Last = Annotated[date | None, Query(alias="to")]
By = Annotated[str, Query(max_length=100, description="columns with commas between them")]
Name = Annotated[str, Query(max_length=256)]
Form = Annotated[
    Literal["", "json", "csv"], Query(alias="format", description="else the header `accept` tells")
]


@router.get("/admin/usage", tags=["operators"], response_model=UsageTable)
async def get_usage(
    request: Request,
    gateway: GatewayDep,
    first: First = None,
    last: Last = None,
    by: By = "day,tenant",
    tenant: Name = "",
    key: Name = "",
    model: Name = "",
    form: Form = "",
) -> Response:
    """The use of some days (UTC), added up by day, tenant, key and model. A second or two late."""
    days = range_of(first, last, gateway.fleet.now_s())
    query = UsageQuery(*days, columns_of(by, _COLUMNS), tenant, key, model)
    answer = await answer_of(UsageRecords(gateway.queue), query)
    return await _shown(request, form, answer, lambda: UsageTable.of(answer))


@router.get("/v1/usage", tags=["OpenAI"], response_model=OwnUsageTable)
async def get_own_usage(
    request: Request,
    gateway: GatewayDep,
    caller: KeyDep,
    first: First = None,
    last: Last = None,
    by: By = "day,model",
    key: Name = "",
    model: Name = "",
    form: Form = "",
) -> Response:
    """The tenant's own use of some days (UTC), added up by day, key and model; and its limits."""
    days = range_of(first, last, gateway.fleet.now_s())
    query = UsageQuery(*days, columns_of(by, _OWN_COLUMNS), caller.tenant, key, model)
    answer = await answer_of(UsageRecords(gateway.queue), query)
    limits = await _limits(gateway, caller)
    return await _shown(request, form, answer, lambda: OwnUsageTable.of(answer, limits=limits))


async def _limits(gateway: Gateway, caller: ApiKey) -> OwnLimits:
    names = [tenant_name(caller.tenant), *([key_name(caller.id)] if caller.id else [])]
    limits = gateway.keys.tenant_limits.get(caller.tenant, NO_LIMITS), caller.limits
    used = await used_objects(gateway, names)
    found = [
        UsedLimits(limits=limits_object(each), used=of_it)
        for each, of_it in zip(limits, used, strict=False)
    ]
    return OwnLimits(tenant=found[0], key=found[1] if caller.id else None)


async def _shown(
    request: Request, form: str, answer: UsageAnswer, table: Callable[[], UsageTable]
) -> Response:
    if form == "csv" or (not form and _CSV in request.headers.get("accept", "")):
        first, last = answer.query.first, answer.query.last
        name = f"usage-{first}-{last}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(await in_thread(lambda: csv_of(answer)), media_type=_CSV, headers=headers)
    text = await in_thread(lambda: table().model_dump_json(by_alias=True))
    return Response(text, media_type="application/json")


API = Api(routers=(router,))
