"""Endpoints and events for tests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from shared.store.redis.delivery_format import new_delivery
from shared.store.redis.delivery_records import Taken
from shared.store.webhooks import WebhookRecords
from shared.webhooks.webhook_delivery import Event, TryResult
from shared.webhooks.webhook_endpoint import EVENT_TYPES, WebhookEndpoint, new_endpoint_id
from shared.webhooks.webhook_signature import new_secret
from tests.redis.conftest import TENANT

_numbers = itertools.count(1)


def make_endpoint(**changes: Any) -> WebhookEndpoint:
    """An endpoint that has subscribed to everything."""
    fields: dict[str, Any] = {
        "id": new_endpoint_id(),
        "tenant": TENANT,
        "name": "n",
        "url": "https://example.com/",
        "event_types": EVENT_TYPES,
        "secret": new_secret(),
        "created_at": 1.0,
        "updated_at": 1.0,
    }
    return WebhookEndpoint(**(fields | changes))


async def create(records: WebhookRecords, **changes: Any) -> WebhookEndpoint:
    """Store an endpoint."""
    endpoint = make_endpoint(**changes)
    await records.create(endpoint)
    return endpoint


def told(endpoint: WebhookEndpoint, *, claim: str = "") -> Taken:
    """A new event of the outbox that goes to an endpoint."""
    event = Event("job.completed", f"job_{next(_numbers):027x}", 1_000_000)
    return Taken(endpoint, new_delivery(event, endpoint.id), claim)


def ended(taken: Taken, result: TryResult) -> Taken:
    """With the result of its try."""
    return replace(taken, result=result)
