"""Cancel or retry all jobs that a filter matches. For operators: jobs of any tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.apis.jobs.bulk_action import Bulk, BulkAction, BulkActions
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.job_filter import parse_filter, tenants_of
from gateway.core.operator_body import optional_body, taken_reason
from gateway.description.schema import MAYBE_TEXT, takes
from gateway.http.query import known_only
from gateway.http.wrong_fields import wrong_field
from shared.store.operators import AuditTrail
from shared.store.views import PLACE, Place
from shared.tenants.api_key import ApiKey

router = APIRouter(prefix="/admin/jobs", tags=["operators"], dependencies=[known_only])


class BulkRequest(BaseModel):
    """The body of a bulk action, but for `reason`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filter: Annotated[str, Field(min_length=1)]
    """As in `GET /jobs?filter=`. Without `tenant:` the operator's own jobs."""
    dry_run: bool = False
    """Only count, and change nothing."""
    cursor: Annotated[str, Field(pattern=PLACE)] | None = None
    """`next_cursor` of the call before, if `more` was true."""


_BODY = BulkRequest.model_json_schema()
_BODY["properties"]["reason"] = MAYBE_TEXT | {"description": "for the audit log"}
_DESCRIBED = takes(_BODY)


@router.post("/cancel", openapi_extra=_DESCRIBED)
async def cancel_jobs(request: Request, gateway: GatewayDep, operator: KeyDep) -> Bulk:
    """Cancel the queued and running jobs that match `filter`, 1000 at most in one call."""
    return await _run("cancel", request, gateway, operator)


@router.post("/retry", openapi_extra=_DESCRIBED)
async def retry_jobs(request: Request, gateway: GatewayDep, operator: KeyDep) -> Bulk:
    """Submit the failed, cancelled and expired jobs that match `filter` again, 1000 at most.

    A job is repeated once only, however often this is called.
    """
    return await _run("retry", request, gateway, operator)


async def _run(action: BulkAction, request: Request, gateway: Gateway, operator: ApiKey) -> Bulk:
    reason, fields = taken_reason(await optional_body(request, gateway))
    try:
        asked = BulkRequest.model_validate(fields)
    except ValidationError as error:
        raise wrong_field(error) from error
    job_filter = parse_filter(asked.filter, gateway.fleet.now_s())
    tenants = tenants_of(job_filter, operator.tenant, [each.name for each in gateway.keys.tenants])
    bulk = BulkActions(gateway)
    before = Place.parse(asked.cursor) if asked.cursor else None
    result = await bulk.run(action, tenants, job_filter, before, dry_run=asked.dry_run)
    if not asked.dry_run:
        await gateway.of(AuditTrail).write(
            f"jobs.{action}",
            asked.filter,
            operator,
            reason,
            done=result.done,
            matched=result.matched,
        )
    return result
