"""`GET /admin/audit`: what operators have changed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gateway.core.context import GatewayDep
from gateway.http.query import known_only
from shared.job.errors import BadRequest
from shared.store.operators import AuditRecord, AuditTrail, is_audit_id

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])


class AuditEntry(BaseModel):
    """One change."""

    id: str
    object: Literal["audit_entry"] = "audit_entry"
    at: float
    """Unix seconds."""
    action: str
    subject: str
    tenant: str
    """Of the operator's key."""
    key: str
    """Its id; empty: it stands in the gateway's settings."""
    reason: str
    details: dict[str, Any]

    @classmethod
    def of(cls, record: AuditRecord) -> Self:
        """An entry in the API's form."""
        return cls(at=record.at_s, **record._asdict())


class AuditEntryList(BaseModel):
    """A page of changes, newest first."""

    object: Literal["list"] = "list"
    data: list[AuditEntry]
    has_more: bool


@router.get("/audit")
async def list_changes(
    gateway: GatewayDep,
    after: Annotated[str, Query(max_length=40)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditEntryList:
    """What operators have changed, newest first; the latest 10,000 changes are kept.

    `after` is the last id of the page before.
    """
    if after and not is_audit_id(after):
        raise BadRequest("`after` must be the last id of the page before.", "after")
    found = await gateway.of(AuditTrail).read(after, limit + 1)
    return AuditEntryList(
        data=[AuditEntry.of(each) for each in found[:limit]], has_more=len(found) > limit
    )
