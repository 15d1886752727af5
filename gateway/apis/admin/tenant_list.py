"""The tenants that have API keys, what is kept of each, and what it has used of its budgets."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from gateway.apis.admin.key_object import TENANT, NewLimits, TenantLimits
from gateway.apis.admin.key_routes import NEW_LIMITS, check_configured
from gateway.core.call import read_object
from gateway.core.context import GatewayDep, KeyDep
from gateway.core.key_refresh import KeyRefresh
from gateway.core.limits_object import LimitsObject, UsedObject, limits_object, used_objects
from gateway.description.schema import errors_in
from gateway.http.query import known_only
from shared.job.errors import KeysNotConfigured
from shared.store.errors import StoreError
from shared.store.operators import AuditTrail
from shared.store.views import kept_of
from shared.tenants.rate_limits import NO_LIMITS, tenant_name

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])


class TenantRow(BaseModel):
    """A tenant, what is kept of it, and what it has used."""

    tenant: str
    operator: bool
    keys: int
    jobs_kept: int
    conversations_kept: int
    bytes_kept: int
    last_job_at: float | None
    limits: LimitsObject
    """Of all its keys together."""
    used: UsedObject
    """By all its keys together."""


class TenantRowList(BaseModel):
    """The tenants."""

    object: Literal["list"] = "list"
    data: list[TenantRow]


@router.put(
    "/tenants/{tenant}/limits",
    responses=errors_in(KeysNotConfigured),
    openapi_extra=NEW_LIMITS,
)
async def limit_tenant(
    tenant: Annotated[str, Path(pattern=TENANT)],
    request: Request,
    gateway: GatewayDep,
    operator: KeyDep,
) -> TenantLimits:
    """Set the limits of all keys of a tenant together, in place of those that it has."""
    check_configured(gateway)
    sent = await read_object(gateway.settings, request.scope, request.receive, NewLimits.of)
    refresh = gateway.of(KeyRefresh)
    await refresh.records.limit_tenant(tenant, sent.limits)
    with contextlib.suppress(StoreError):
        await refresh.refresh()  # this gateway knows it when it answers
    limits = sent.limits._asdict()
    await gateway.of(AuditTrail).write("tenant.limited", tenant, operator, sent.reason, **limits)
    return TenantLimits(tenant=tenant, limits=limits_object(sent.limits))


@router.get("/tenants")
async def list_tenants(gateway: GatewayDep) -> TenantRowList:
    """Each tenant that has keys: what is kept of it, and what it has used today and this month."""
    tenants = gateway.keys.tenants
    kept = await kept_of(gateway.queue, [tenant.name for tenant in tenants])
    used = await used_objects(gateway, [tenant_name(tenant.name) for tenant in tenants])
    rows = [
        TenantRow(
            tenant=tenant.name,
            operator=tenant.operator,
            keys=tenant.keys,
            jobs_kept=jobs.number,
            conversations_kept=jobs.conversations,
            bytes_kept=jobs.bytes,
            last_job_at=jobs.last_at,
            limits=limits_object(gateway.keys.tenant_limits.get(tenant.name, NO_LIMITS)),
            used=of_budgets,
        )
        for tenant, jobs, of_budgets in zip(tenants, kept, used, strict=True)
    ]
    return TenantRowList(data=rows)
