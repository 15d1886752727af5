"""Conversations (OpenAI's Conversations API), which responses continue (`conversation`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from gateway.apis.responses.conversation_store import Conversations
from gateway.apis.responses.item_query import IncludedDep, ItemQueryDep, json_answer
from gateway.apis.responses.response_items import Item
from gateway.apis.responses.response_schemas import RESPONSE_ERRORS
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.description.schema import errors_in, ref, shows, takes
from gateway.http.held_bytes import hold_answer
from gateway.http.wrong_fields import wrong_field
from shared.api.field_policy import check_permission, restricted_parts
from shared.job.errors import BadRequest

router = APIRouter(
    prefix="/v1/conversations",
    tags=["OpenAI"],
    responses=errors_in(*RESPONSE_ERRORS),
)

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class ConversationRequest(BaseModel):
    """The body of a request about a conversation."""

    model_config = ConfigDict(strict=True)

    items: list[Item] | None = None
    metadata: Metadata | None = None


@router.post(
    "", response_model=None, openapi_extra=shows("Conversation") | takes(ref("ConversationRequest"))
)
async def create(request: Request, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """A new conversation, with `items` and `metadata` if the body has any."""
    sent = await _body(request, gateway)
    made = await gateway.of(Conversations).create(tenant, sent.metadata or {}, sent.items or [])
    return made.shown()


@router.get("/{conversation_id}", response_model=None, openapi_extra=shows("Conversation"))
async def retrieve(conversation_id: str, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """A conversation without its items."""
    return (await gateway.of(Conversations).get(tenant, conversation_id)).shown()


@router.post(
    "/{conversation_id}",
    response_model=None,
    openapi_extra=shows("Conversation") | takes(ref("ConversationRequest")),
)
async def update(
    conversation_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> dict[str, Any]:
    """Replace the metadata of a conversation, if the body has any."""
    sent = await _body(request, gateway)
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    if "metadata" in sent.model_fields_set:
        metadata = sent.metadata or {}
        await gateway.of(Conversations).set_metadata(conversation, metadata)
        conversation = conversation._replace(metadata=metadata)
    return conversation.shown()


@router.delete(
    "/{conversation_id}", response_model=None, openapi_extra=shows("DeletedConversation")
)
async def delete(conversation_id: str, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """Delete a conversation with its items; its responses stay."""
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    await gateway.of(Conversations).delete(conversation)
    return {"id": conversation.id, "object": "conversation.deleted", "deleted": True}


@router.post(
    "/{conversation_id}/items",
    response_model=None,
    openapi_extra=shows("ItemList") | takes(ref("ConversationRequest")),
)
async def add_items(
    conversation_id: str,
    request: Request,
    gateway: GatewayDep,
    tenant: TenantDep,
    included: IncludedDep,
) -> Response:
    """Add `items` at the end of a conversation."""
    sent = await _body(request, gateway)
    if not sent.items:
        raise BadRequest("`items` must have at least one item.", "items")
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    return json_answer(await gateway.of(Conversations).append(conversation, sent.items))


@router.get("/{conversation_id}/items", response_model=None, openapi_extra=shows("ItemList"))
async def list_items(
    conversation_id: str,
    request: Request,
    gateway: GatewayDep,
    tenant: TenantDep,
    query: ItemQueryDep,
) -> Response:
    """The items of a conversation, a page of them."""
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    return json_answer(
        await gateway.of(Conversations).items(
            conversation,
            after=query.after,
            limit=query.limit,
            descending=query.descending,
            hold=partial(hold_answer, request.scope),
        )
    )


@router.get("/{conversation_id}/items/{item_id}", response_model=None, openapi_extra=shows("Item"))
async def get_item(
    request: Request,
    conversation_id: str,
    item_id: str,
    gateway: GatewayDep,
    tenant: TenantDep,
    included: IncludedDep,
) -> Response:
    """One item of a conversation."""
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    hold = partial(hold_answer, request.scope)
    return json_answer(await gateway.of(Conversations).item(conversation, item_id, hold))


@router.delete(
    "/{conversation_id}/items/{item_id}", response_model=None, openapi_extra=shows("Conversation")
)
async def delete_item(
    conversation_id: str, item_id: str, gateway: GatewayDep, tenant: TenantDep
) -> dict[str, Any]:
    """Delete one item; returns the conversation."""
    conversation = await gateway.of(Conversations).get(tenant, conversation_id)
    await gateway.of(Conversations).remove(conversation, item_id)
    return conversation.shown()


async def _body(request: Request, gateway: Gateway) -> ConversationRequest:
    """The request's body. Raises as `read_object`."""
    settings = gateway.settings
    return await read_object(
        settings,
        request.scope,
        request.receive,
        lambda fields: _checked(fields, settings.allow_fields),
    )


def _checked(fields: dict[str, Any], allowed: Sequence[str]) -> ConversationRequest:
    items = fields.get("items")
    if type(items) is list:  # responses of any model may continue them
        check_permission(restricted_parts(items), allowed)
    try:
        return ConversationRequest.model_validate(fields)
    except ValidationError as error:
        raise wrong_field(error) from error
