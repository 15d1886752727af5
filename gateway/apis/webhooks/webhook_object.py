"""Endpoints and deliveries as the API shows them. Times are Unix seconds."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel

from shared.webhooks.webhook_delivery import Delivery, DeliveryState
from shared.webhooks.webhook_endpoint import WebhookEndpoint


class WebhookEndpointObject(BaseModel):
    """OpenAI's object, and why the endpoint is disabled."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: list[str]
    created_at: int
    updated_at: int
    signing_secret_hint: str
    disabled: str | None
    """Why nothing is sent to it any more; null: events are sent."""

    @classmethod
    def of(cls, endpoint: WebhookEndpoint) -> Self:
        """An endpoint in the API's form."""
        return cls(**_shown(endpoint))


class WebhookEndpointWithSecret(WebhookEndpointObject):
    """What only `create` and `rotate_secret` answer: the secret is shown once."""

    signing_secret: str

    @classmethod
    def of(cls, endpoint: WebhookEndpoint) -> Self:
        """An endpoint in the API's form."""
        return cls(**_shown(endpoint), signing_secret=endpoint.secret)


def _shown(endpoint: WebhookEndpoint) -> dict[str, object]:
    return {
        "id": endpoint.id,
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "created_at": int(endpoint.created_at),
        "updated_at": int(endpoint.updated_at),
        "signing_secret_hint": f"whsec_...{endpoint.secret[-4:]}",
        "disabled": endpoint.disabled or None,
    }


class WebhookEndpointList(BaseModel):
    """A page of a tenant's endpoints, newest first."""

    object: Literal["list"] = "list"
    data: list[WebhookEndpointObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class WebhookEndpointDeleted(BaseModel):
    """A deleted endpoint."""

    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: Literal[True] = True


class WebhookTestResult(BaseModel):
    """The answer to a test event."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    event_type: str
    status_code: int
    """Of the endpoint's answer, whatever it is."""
    success: Literal[True] = True
    webhook_endpoint_id: str


class WebhookEventTypes(BaseModel):
    """What endpoints may subscribe to."""

    object: Literal["list"] = "list"
    data: list[str]


class WebhookTry(BaseModel):
    """One try to deliver an event."""

    at: float
    status_code: int | None
    """Null: there was no answer."""
    error: str | None
    duration_ms: int


class WebhookDelivery(BaseModel):
    """An event on its way to an endpoint."""

    id: str
    """Sent as `webhook-id`, at each try."""
    object: Literal["webhook_delivery"] = "webhook_delivery"
    webhook_endpoint_id: str
    event_id: str
    event_type: str
    subject: str
    """The id of the job, response or batch that has ended."""
    created_at: int
    state: DeliveryState
    tries: list[WebhookTry]
    """The latest 12."""
    next_try_at: float | None

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """A delivery in the API's form."""
        tries = [
            WebhookTry(
                at=each.at,
                status_code=each.status or None,
                error=each.error or None,
                duration_ms=each.duration_ms,
            )
            for each in delivery.tries
        ]
        return cls(
            id=delivery.id,
            webhook_endpoint_id=delivery.endpoint,
            event_id=delivery.event.id,
            event_type=delivery.event.type,
            subject=delivery.event.subject,
            created_at=delivery.event.at_us // 1_000_000,
            state=delivery.state,
            tries=tries,
            next_try_at=delivery.next_at,
        )


class WebhookDeliveryList(BaseModel):
    """A page of an endpoint's deliveries: those that have not ended, then the latest others."""

    object: Literal["list"] = "list"
    data: list[WebhookDelivery]
    has_more: bool
