"""Routes of webhooks: OpenAI's, and what was sent to an endpoint."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway.apis.webhooks.webhook_object import (
    WebhookDelivery,
    WebhookDeliveryList,
    WebhookEndpointDeleted,
    WebhookEndpointList,
    WebhookEndpointObject,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
    WebhookTestResult,
)
from gateway.apis.webhooks.webhook_request import (
    WebhookCreate,
    WebhookRotation,
    WebhookTest,
    WebhookUpdate,
)
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.description.api import Api
from gateway.description.schema import errors_in, shows, takes
from gateway.http.body import has_body
from gateway.http.query import known_only
from gateway.webhooks.checked_network import check_url
from gateway.webhooks.webhook_sender import WebhookSender
from shared.job import errors
from shared.store.webhooks import Address, Deliveries, WebhookRecords
from shared.webhooks.address_check import AllowedAddresses
from shared.webhooks.webhook_delivery import Event
from shared.webhooks.webhook_endpoint import (
    EVENT_TYPES,
    WebhookEndpoint,
    new_endpoint_id,
)
from shared.webhooks.webhook_signature import new_secret, signed_headers

router = APIRouter(prefix="/v1", tags=["OpenAI"], dependencies=[known_only])

_DAY_S = 86_400.0
_REFUSED = errors_in(errors.WebhookUrlRefused)


@router.get("/webhook_event_types")
async def list_event_types() -> WebhookEventTypes:
    """The events that endpoints may subscribe to."""
    return WebhookEventTypes(data=list(EVENT_TYPES))


@router.post(
    "/webhook_endpoints",
    responses=_REFUSED,
    openapi_extra=takes(WebhookCreate.model_json_schema())
    | shows("WebhookEndpointWithSecret", errors=(errors.TooManyWebhooks,)),
)
async def create(
    request: Request, gateway: GatewayDep, tenant: TenantDep
) -> WebhookEndpointWithSecret:
    """Have events sent to a URL. The secret that signs them is shown now, and not again."""
    sent = await read_object(gateway.settings, request.scope, request.receive, WebhookCreate.of)
    await _check_url(gateway, sent.url)
    now_s = gateway.fleet.now_s()
    endpoint = WebhookEndpoint(
        id=new_endpoint_id(),
        tenant=tenant,
        name=sent.name,
        url=sent.url,
        event_types=tuple(sent.event_types),
        secret=new_secret(),
        created_at=now_s,
        updated_at=now_s,
    )
    await gateway.of(WebhookRecords).create(endpoint)
    return WebhookEndpointWithSecret.of(endpoint)


@router.get("/webhook_endpoints")
async def list_endpoints(
    gateway: GatewayDep,
    tenant: TenantDep,
    after: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> WebhookEndpointList:
    """The tenant's endpoints, newest first; `after` is the last id of the page before."""
    found, has_more = await gateway.of(WebhookRecords).list(tenant, after, limit)
    shown = [WebhookEndpointObject.of(each) for each in found]
    return WebhookEndpointList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=has_more,
    )


@router.get("/webhook_endpoints/{endpoint_id}")
async def retrieve(
    endpoint_id: str, gateway: GatewayDep, tenant: TenantDep
) -> WebhookEndpointObject:
    """An endpoint, without its secret."""
    return WebhookEndpointObject.of(await _endpoint(gateway, tenant, endpoint_id))


@router.post(
    "/webhook_endpoints/{endpoint_id}",
    responses=_REFUSED,
    openapi_extra=takes(WebhookUpdate.model_json_schema()),
)
async def update(
    endpoint_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> WebhookEndpointObject:
    """Change an endpoint. Sending a `url` has events sent again if it was disabled."""
    await _endpoint(gateway, tenant, endpoint_id)
    sent = await read_object(gateway.settings, request.scope, request.receive, WebhookUpdate.of)
    if sent.url is not None:
        await _check_url(gateway, sent.url)

    def updated(before: WebhookEndpoint) -> WebhookEndpoint:
        types = before.event_types if sent.event_types is None else tuple(sent.event_types)
        after = before._replace(
            name=before.name if sent.name is None else sent.name,
            url=before.url if sent.url is None else sent.url,
            event_types=types,
            disabled=before.disabled if sent.url is None else "",
        )
        return before if after == before else after._replace(updated_at=gateway.fleet.now_s())

    return WebhookEndpointObject.of(await _changed(gateway, endpoint_id, updated))


@router.delete("/webhook_endpoints/{endpoint_id}")
async def delete(
    endpoint_id: str, gateway: GatewayDep, tenant: TenantDep
) -> WebhookEndpointDeleted:
    """Delete an endpoint with its deliveries: what has not arrived is not sent any more."""
    if not await gateway.of(WebhookRecords).delete(tenant, endpoint_id):
        raise _no_such_endpoint(endpoint_id)
    return WebhookEndpointDeleted(id=endpoint_id)


@router.post(
    "/webhook_endpoints/{endpoint_id}/rotate_secret",
    openapi_extra=takes(WebhookRotation.model_json_schema(), required=False),
)
async def rotate_secret(
    endpoint_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> WebhookEndpointWithSecret:
    """Replace the secret; the new one is shown now, and not again."""
    await _endpoint(gateway, tenant, endpoint_id)
    sent = WebhookRotation()
    if has_body(request.scope["headers"]):
        sent = await read_object(
            gateway.settings, request.scope, request.receive, WebhookRotation.of
        )
    now_s, keep = gateway.fleet.now_s(), sent.keep_old_secret_active_for_24_hours
    rotated = await _changed(
        gateway,
        endpoint_id,
        lambda before: before._replace(
            secret=new_secret(),
            old_secret=before.secret if keep else "",
            old_until=now_s + _DAY_S if keep else 0.0,
            updated_at=now_s,
        ),
    )
    return WebhookEndpointWithSecret.of(rotated)


@router.post(
    "/webhook_endpoints/{endpoint_id}/test",
    responses=errors_in(errors.WebhookUnreachable),
    openapi_extra=takes(WebhookTest.model_json_schema()),
)
async def test(
    endpoint_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> WebhookTestResult:
    """Send an event of a job, response or batch that does not exist, once and now."""
    endpoint = await _endpoint(gateway, tenant, endpoint_id)
    sent = await read_object(gateway.settings, request.scope, request.receive, WebhookTest.of)
    now_s = time.time()
    subject = f"{sent.event_type.partition('.')[0]}_test_{secrets.token_hex(8)}"
    event = Event(sent.event_type, subject, int(now_s * 1e6))
    body = event.body()
    headers = signed_headers(event.webhook_id(endpoint.id), now_s, body, endpoint.secrets(now_s))
    outcome = await gateway.of(WebhookSender).post(endpoint.url, headers, body)
    if not outcome.status:
        raise errors.WebhookUnreachable(f"The endpoint has not answered: {outcome.error}.")
    return WebhookTestResult(
        event_type=sent.event_type,
        status_code=outcome.status,
        webhook_endpoint_id=endpoint.id,
    )


@router.get("/webhook_endpoints/{endpoint_id}/deliveries")
async def list_deliveries(
    endpoint_id: str,
    gateway: GatewayDep,
    tenant: TenantDep,
    after: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> WebhookDeliveryList:
    """What was sent to it: what has not arrived yet, then the latest 1,000 of seven days."""
    endpoint = await _endpoint(gateway, tenant, endpoint_id)
    found, has_more = await gateway.of(Deliveries).list(endpoint.id, after, limit)
    data = [WebhookDelivery.of(each) for each in found]
    return WebhookDeliveryList(data=data, has_more=has_more)


@router.post("/webhook_endpoints/{endpoint_id}/deliveries/{webhook_id}/resend")
async def resend(
    endpoint_id: str, webhook_id: str, gateway: GatewayDep, tenant: TenantDep
) -> WebhookDelivery:
    """Send an event again, with the same `webhook-id` and, if it fails, for 72 hours."""
    endpoint = await _endpoint(gateway, tenant, endpoint_id)
    found = await gateway.of(Deliveries).resend(Address(endpoint.id, tenant), webhook_id)
    if found is None:
        raise errors.NotFound(f"There is no delivery {webhook_id[:64]!r}: it is unknown, or gone.")
    return WebhookDelivery.of(found)


async def _check_url(gateway: Gateway, url: str) -> None:
    sender = gateway.of(WebhookSender)
    await check_url(url, sender.allowed, sender.resolver)


async def _changed(
    gateway: Gateway, endpoint_id: str, change: Callable[[WebhookEndpoint], WebhookEndpoint]
) -> WebhookEndpoint:
    changed = await gateway.of(WebhookRecords).documents.change(endpoint_id, change)
    if changed is None:
        raise _no_such_endpoint(endpoint_id)
    return changed


async def _endpoint(gateway: Gateway, tenant: str, endpoint_id: str) -> WebhookEndpoint:
    """The tenant's endpoint with this id. Raises NotFound, and StoreError."""
    found = await gateway.of(WebhookRecords).get(tenant, endpoint_id)
    if found is None:
        raise _no_such_endpoint(endpoint_id)
    return found


def _no_such_endpoint(endpoint_id: str) -> errors.NotFound:
    return errors.NotFound(f"There is no webhook endpoint {endpoint_id[:64]!r}.")


def _start(gateway: Gateway) -> None:
    gateway.add(WebhookRecords(gateway.queue))
    gateway.add(Deliveries(gateway.queue))
    gateway.add(WebhookSender(AllowedAddresses.of(gateway.settings.webhook_allow)))


API = Api(routers=(router,), start=_start)
