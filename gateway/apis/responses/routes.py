"""Stored responses (OpenAI's Responses API): retrieve, cancel, delete, list the input.

`POST /v1/responses` is a row of the endpoint table (inference.py); a retrieve with `stream=true` is
in response_stream.py.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.apis.context import GatewayDep, TenantDep
from gateway.apis.responses.item_query import IncludedDep, ItemQueryDep, json_answer
from gateway.apis.responses.response_object import response_object
from gateway.apis.responses.stored_response import stored_response
from gateway.core.send_body import BodyResponse
from gateway.http.query import known_only
from shared.job.errors import BadRequest

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"], dependencies=[known_only])


@router.get("/{response_id}", response_model=None)
async def retrieve(
    response_id: str,
    gateway: GatewayDep,
    tenant: TenantDep,
    included: IncludedDep,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include_obfuscation: bool | None = None,
) -> Response:
    """The response now; with `stream=true` its events behind number `starting_after`, then live."""
    if starting_after is not None:
        raise BadRequest("`starting_after` needs `stream=true`.", "starting_after")
    stored = await stored_response(gateway.queue, tenant, response_id)
    return BodyResponse(await response_object(gateway.queue, stored))


@router.post("/{response_id}/cancel", response_model=None)
async def cancel(response_id: str, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Cancel a response in the background; one that has ended stays as it is."""
    stored = await stored_response(gateway.queue, tenant, response_id)
    if not stored.options.background:
        raise BadRequest("Cannot cancel a synchronous response.", "response_id")
    await gateway.queue.cancel(stored.job.id, tenant)
    stored = await stored_response(gateway.queue, tenant, response_id)
    return BodyResponse(await response_object(gateway.queue, stored))


@router.delete("/{response_id}", response_model=None)
async def delete(response_id: str, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """Delete a response, and cancel it if it has not ended. Its conversation keeps its items."""
    stored = await stored_response(gateway.queue, tenant, response_id)
    await gateway.responses.delete(stored)
    return {"id": stored.id, "object": "response", "deleted": True}


@router.get("/{response_id}/input_items", response_model=None)
async def input_items(
    response_id: str,
    gateway: GatewayDep,
    tenant: TenantDep,
    query: ItemQueryDep,
) -> Response:
    """The items that the response was made from, with those of the responses before it."""
    stored = await stored_response(gateway.queue, tenant, response_id)
    return json_answer(
        await gateway.responses.input_page(
            stored, after=query.after, limit=query.limit, descending=query.descending
        )
    )
