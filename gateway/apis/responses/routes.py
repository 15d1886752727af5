"""Stored responses (OpenAI's Responses API): retrieve, cancel, delete, list the input.

`POST /v1/responses` is a row of the endpoint table, to which `response_step.py` adds what this API
does; a retrieve with `stream=true` is in response_stream.py.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.apis.responses import conversation_routes
from gateway.apis.responses.conversation_store import Conversations
from gateway.apis.responses.item_query import IncludedDep, ItemQueryDep, json_answer
from gateway.apis.responses.response_jobs import ResponseJobs
from gateway.apis.responses.response_object import response_object
from gateway.apis.responses.response_schemas import RESPONSE_ERRORS, RESPONSE_SCHEMAS
from gateway.apis.responses.response_step import ResponseStep
from gateway.apis.responses.response_stream import resume, wants_events
from gateway.apis.responses.stored_response import stored_response
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.core.plain_route import PlainRoute
from gateway.core.send_body import BodyResponse
from gateway.description.api import Api
from gateway.description.endpoint_route import endpoint_routes
from gateway.description.schema import errors_in, shows
from gateway.http.held_bytes import hold_answer
from shared.job.errors import BadRequest, NotFound, StreamReset
from shared.job.responses import job_id_of

router = APIRouter(
    prefix="/v1/responses",
    tags=["OpenAI"],
    responses=errors_in(*RESPONSE_ERRORS, StreamReset),
)


@router.get("/{response_id}", response_model=None, openapi_extra=shows("Response", events=True))
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


@router.post("/{response_id}/cancel", response_model=None, openapi_extra=shows("Response"))
async def cancel(response_id: str, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Cancel a response in the background; one that has ended stays as it is."""
    stored = await stored_response(gateway.queue, tenant, response_id)
    if not stored.options.background:
        raise BadRequest("Cannot cancel a synchronous response.", "response_id")
    await gateway.queue.cancel(tenant, stored.job.id)
    stored = await stored_response(gateway.queue, tenant, response_id)
    return BodyResponse(await response_object(gateway.queue, stored))


@router.delete("/{response_id}", response_model=None, openapi_extra=shows("DeletedResponse"))
async def delete(response_id: str, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """Delete a response, and cancel it if it has not ended. Its conversation keeps its items."""
    stored = await stored_response(gateway.queue, tenant, response_id)
    await gateway.of(ResponseJobs).delete(stored)
    return {"id": stored.id, "object": "response", "deleted": True}


@router.get("/{response_id}/input_items", response_model=None, openapi_extra=shows("ItemList"))
async def input_items(
    response_id: str,
    request: Request,
    gateway: GatewayDep,
    tenant: TenantDep,
    query: ItemQueryDep,
) -> Response:
    """The items that the response was made from, with those of the responses before it."""
    hold, job_id = partial(hold_answer, request.scope), job_id_of(response_id)
    if job_id:  # it is read and copied several times before there is a page
        await hold(4 * await gateway.queue.request_bytes(job_id))
    stored = await stored_response(gateway.queue, tenant, response_id)
    return json_answer(
        await gateway.of(ResponseJobs).input_page(
            stored,
            after=query.after,
            limit=query.limit,
            descending=query.descending,
            hold=hold,
        )
    )


def _start(gateway: Gateway) -> None:
    conversations = Conversations(gateway.queue, gateway.factory.new_shard, gateway.settings)
    jobs = ResponseJobs(gateway.queue, conversations, gateway.settings)
    gateway.add(conversations)
    gateway.add(jobs)
    gateway.steps[_ENDPOINT] = ResponseStep(gateway, jobs)


_ENDPOINT = "/v1/responses"
API = Api(
    routers=(router, conversation_routes.router),
    plain=(
        *endpoint_routes(_ENDPOINT, further=(*RESPONSE_ERRORS, NotFound)),
        PlainRoute(
            method="GET",
            path=f"{_ENDPOINT}/{{response_id}}",
            begin=resume,
            applies=wants_events,
            description={},  # that of `retrieve`
        ),
    ),
    schemas=RESPONSE_SCHEMAS,
    start=_start,
)
