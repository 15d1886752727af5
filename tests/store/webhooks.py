"""Endpoints and events for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from shared.store.deliveries import Address, Deliveries
from shared.store.ended import EndedStreams, Reader
from shared.store.queue import Queue
from shared.store.webhooks import WebhookRecords
from shared.webhooks.webhook_delivery import Event
from shared.webhooks.webhook_endpoint import EVENT_TYPES, WebhookEndpoint, new_endpoint_id
from shared.webhooks.webhook_signature import new_secret
from tests.store.conftest import TENANT

_numbers = itertools.count(1)


async def create(records: WebhookRecords, **changes: Any) -> WebhookEndpoint:
    """Store an endpoint that has subscribed to everything."""
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
    endpoint = WebhookEndpoint(**(fields | changes))
    await records.create(endpoint)
    return endpoint


def new_event() -> Event:
    """That of a job that has ended."""
    return Event("job.completed", f"job_{next(_numbers):027x}", 1_000_000)


async def tell(queue: Queue, *endpoints: WebhookEndpoint, events: Sequence[Event] = ()) -> int:
    """Have events, a new one if none are given, delivered to each of these endpoints.

    Returns how many were dropped.
    """
    found = [(each, event) for event in events or [new_event()] for each in endpoints]
    at = (await EndedStreams(queue, Reader.WEBHOOKS).positions()).get(0, "")
    dropped = await Deliveries(queue).add(0, at, at or "0-1", found)
    assert dropped is not None
    return dropped


def address(endpoint: WebhookEndpoint) -> Address:
    """Of its deliveries."""
    return Address(endpoint.id, endpoint.tenant)
