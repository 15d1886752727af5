"""The tenants that have API keys, what is kept of each, and what it has used."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from gateway.apis.admin.tenant_usage import usage
from gateway.core.context import GatewayDep
from gateway.http.query import known_only
from shared.store.redis.tenants import kept_of

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])

_MOST_TENANTS = 50
"""With more tenants only these, the first by name, have their usage read."""


class TenantRow(BaseModel):
    """A tenant, what is kept of it, and what it has used."""

    tenant: str
    operator: bool
    keys: int
    jobs_kept: int
    conversations_kept: int
    bytes_kept: int
    last_job_at: float | None
    usage: dict[str, Any] | None = Field(description="in the last hour")


class TenantRowList(BaseModel):
    """The tenants."""

    object: Literal["list"] = "list"
    data: list[TenantRow]


@router.get("/tenants")
async def list_tenants(gateway: GatewayDep) -> TenantRowList:
    """Each tenant that has keys: what is kept of it, and its use in the last hour.

    The usage is of the latest 1000 jobs at most; `complete` is true if these were all.
    """
    queue, now_s = gateway.queue, gateway.fleet.now_s()
    tenants = gateway.keys.tenants
    kept = await kept_of(queue, [tenant.name for tenant in tenants])
    used = await asyncio.gather(
        *(usage(queue, tenant.name, now_s) for tenant in tenants[:_MOST_TENANTS])
    )
    rows = [
        TenantRow(
            tenant=tenant.name,
            operator=tenant.operator,
            keys=tenant.keys,
            jobs_kept=jobs.number,
            conversations_kept=jobs.conversations,
            bytes_kept=jobs.bytes,
            last_job_at=jobs.last_at,
            usage=used[number] if number < len(used) else None,
        )
        for number, (tenant, jobs) in enumerate(zip(tenants, kept, strict=True))
    ]
    return TenantRowList(data=rows)
