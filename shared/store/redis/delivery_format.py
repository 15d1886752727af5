"""How deliveries to webhook endpoints are written in Redis.

Three keys of each endpoint have them: `pending` those that have not ended, `tries` what became of
these so far, `delivery_log` those that have ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Event, Try, TryResult

_TRIES_SHOWN = 12


def packed(delivery: Delivery) -> str:
    """A delivery as `pending` has it: nothing else is stored of one that has not been tried."""
    event = delivery.event
    return f"{delivery.id} {event.type} {event.subject} {event.at_us}"


def new_delivery(event: Event, endpoint_id: str) -> Delivery:
    """One that has not been tried."""
    return Delivery(
        id=event.webhook_id(endpoint_id),
        endpoint=endpoint_id,
        event=event,
        state=DeliveryState.PENDING,
        begun_at=event.at_us / 1e6,
        n_tries=0,
        tries=(),
    )


def pending_delivery(
    endpoint_id: str, packed: str, raw_tries: bytes | None, next_at: float | None
) -> Delivery:
    """One of `pending`, and what `tries` has of it; `next_at`: when it is tried next."""
    _, kind, subject, at_us = packed.split(" ")
    found = new_delivery(Event(kind, subject, int(at_us)), endpoint_id)._replace(next_at=next_at)
    if not raw_tries:
        return found
    begun_at, n_tries, tries = json.loads(raw_tries)
    tries = tuple(Try(*each) for each in tries)
    return found._replace(begun_at=begun_at, n_tries=n_tries, tries=tries)


def outcome(delivery: Delivery, result: TryResult) -> tuple[str, str]:
    """The arguments `outcome` and `record` of the script `end_tries`."""
    tries = (*delivery.tries, result.done)[-_TRIES_SHOWN:]
    if result.next_at is not None:
        tried = delivery._replace(n_tries=delivery.n_tries + 1)
        return str(int(result.next_at * 1e6)), packed_tries(tried, tries)
    event = delivery.event
    record = json.dumps(
        (event.type, event.subject, event.at_us, result.state, delivery.begun_at,
         delivery.n_tries + 1, tries)
    )  # fmt: skip
    # In front of it: what is read of those that are not shown.
    return result.state, f"{delivery.id} {int(result.done.at * 1e6)} {record}"


def packed_tries(delivery: Delivery, tries: Sequence[Try]) -> str:
    """What `tries` has of a delivery."""
    return json.dumps((delivery.begun_at, delivery.n_tries, tries))


def ended_delivery(endpoint_id: str, raw: str) -> Delivery:
    """One of `delivery_log`."""
    webhook_id, _, record = raw.split(" ", 2)
    kind, subject, at_us, state, begun_at, n_tries, tries = json.loads(record)
    return Delivery(
        id=webhook_id,
        endpoint=endpoint_id,
        event=Event(kind, subject, at_us),
        state=DeliveryState(state),
        begun_at=begun_at,
        n_tries=n_tries,
        tries=tuple(Try(*each) for each in tries),
    )
