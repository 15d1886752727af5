"""Makes events of what has ended (the outbox), and deliveries of the events."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from shared.job.errors import StreamReset
from shared.job.response_id import response_id
from shared.store.final_response import final_body
from shared.store.interface import Store
from shared.store.redis.delivery_records import MOST_PENDING, DeliveryRecords
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.webhook_records import WebhookRecords
from shared.store.stored_body import read_whole
from shared.webhooks.webhook_delivery import Ended, Event
from shared.webhooks.webhook_endpoint import WebhookEndpoint

log = logging.getLogger("flotilla.webhooks")

_AT_ONCE = 200
_MOST_PARSED_BYTES = 4 << 20
"""Of a response that is looked at; a longer one counts as completed."""
_OF_RESPONSES = {"expired": "failed"}
"""States of jobs that responses have another word for."""


class EndedEvents:
    """The outbox of all shards. An entry is deleted once its deliveries are stored, so that a
    process that is killed in between leaves it to the next; that one makes the same deliveries."""

    def __init__(self, queue: JobQueue, deliveries: DeliveryRecords) -> None:
        self._queue = queue
        self._deliveries = deliveries
        self._endpoints = WebhookRecords(queue)

    async def take(self, shard: int) -> bool:
        """Make deliveries of some entries of a shard; whether there may be more.

        Raises StoreError.
        """
        ended = await self._deliveries.ended(shard, _AT_ONCE)
        of_tenants = {
            tenant: await self._endpoints.list(tenant) for tenant in {each.tenant for each in ended}
        }
        pairs = []
        for each in ended:
            chosen = [e for e in of_tenants[each.tenant] if not e.disabled]
            if each.endpoints:
                chosen = [e for e in chosen if e.id in each.endpoints]
            if chosen:
                event = await event_of(self._queue, each)
                pairs += [(event, e.id) for e in chosen if each.endpoints or _wants(e, event)]
        dropped = await self._deliveries.add(pairs)
        if dropped:
            log.warning("dropped %d events: %d wait for their endpoint", dropped, MOST_PENDING)
        await self._deliveries.forget(shard, ended)
        return len(ended) == _AT_ONCE


def _wants(endpoint: WebhookEndpoint, event: Event) -> bool:
    return event.type in endpoint.event_types


async def event_of(queue: Store, ended: Ended) -> Event:
    """What endpoints are told. Raises StoreError."""
    if ended.kind != "response":
        return Event(f"{ended.kind}.{ended.state}", ended.id, ended.at_us)
    state = _OF_RESPONSES.get(ended.state, ended.state)
    if state == "completed":
        state = await _status_of_response(queue, ended.id)
    return Event(f"response.{state}", response_id(ended.id), ended.at_us)


async def _status_of_response(queue: Store, job_id: str) -> str:
    """`incomplete`, or `completed`, also if that can't be told any more."""
    job = await queue.get(job_id)
    try:
        body = await final_body(queue, job) if job else None
        raw = await read_whole(body, _MOST_PARSED_BYTES) if body else None
        response = json.loads(raw) if raw else None
    except (StreamReset, ValueError):
        return "completed"
    is_cut = isinstance(response, Mapping) and response.get("status") == "incomplete"
    return "incomplete" if is_cut else "completed"
