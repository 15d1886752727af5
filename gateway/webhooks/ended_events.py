"""The events of what has ended, and the endpoints that they go to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shared.job.errors import StreamReset
from shared.job.response_id import response_id
from shared.store.final_response import final_body
from shared.store.queue import Queue
from shared.store.redis.delivery_format import new_delivery
from shared.store.redis.delivery_records import Taken
from shared.store.stored_body import read_whole
from shared.store.webhooks import WebhookRecords
from shared.webhooks.webhook_delivery import Ended, Event

_MOST_PARSED_BYTES = 4 << 20
"""Of a response that is looked at; a longer one counts as completed."""
_OF_RESPONSES = {"expired": "failed"}
"""States of jobs that responses have another word for."""


async def deliveries_of(queue: Queue, ended: Sequence[Ended]) -> list[Taken]:
    """What is to be delivered of what has ended. Raises StoreError."""
    of_tenants = await WebhookRecords(queue).documents.of_tenants({each.tenant for each in ended})
    found = []
    for each in ended:
        chosen = [e for e in of_tenants[each.tenant] if not e.disabled]
        if each.endpoints:
            chosen = [e for e in chosen if e.id in each.endpoints]
        if chosen:
            event = await event_of(queue, each)
            found += [
                Taken(e, new_delivery(event, e.id))
                for e in chosen
                if each.endpoints or event.type in e.event_types
            ]
    return found


async def event_of(queue: Queue, ended: Ended) -> Event:
    """What endpoints are told. Raises StoreError."""
    if ended.kind != "response":
        return Event(f"{ended.kind}.{ended.state}", ended.id, ended.at_us)
    state = _OF_RESPONSES.get(ended.state, ended.state)
    if state == "completed":
        state = await _status_of_response(queue, ended.id)
    return Event(f"response.{state}", response_id(ended.id), ended.at_us)


async def _status_of_response(queue: Queue, job_id: str) -> str:
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
