"""Events of jobs, responses and batches that have ended, and their deliveries to endpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple


def notify_of(kind: str, endpoints: Sequence[str] = ()) -> str:
    """The field of a job's or batch's record that names the webhook endpoints which get its end."""
    return " ".join((kind, *endpoints))


class Event(NamedTuple):
    """What endpoints are told."""

    type: str
    subject: str
    """The id of what has ended."""
    at_us: int

    @property
    def id(self) -> str:
        """The same for each endpoint, and however often it is made."""
        return f"evt_{_digest(f'{self.type} {self.subject} {self.at_us}')}"

    def webhook_id(self, endpoint: str) -> str:
        """The id of the delivery to an endpoint: the same at each try."""
        return f"wh_{_digest(f'{self.id} {endpoint}')}"

    def body(self) -> bytes:
        """What is sent: OpenAI's event object."""
        fields = {
            "id": self.id,
            "object": "event",
            "created_at": self.at_us // 1_000_000,
            "type": self.type,
            "data": {"id": self.subject},
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


class DeliveryState(StrEnum):
    """How far a delivery is."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class Try(NamedTuple):
    """One try to deliver an event."""

    at: float
    status: int
    """Of the answer; 0: there was none."""
    error: str
    duration_ms: int


class Delivery(NamedTuple):
    """An event on its way to an endpoint. Times are Unix seconds by Redis' clock."""

    id: str
    endpoint: str
    event: Event
    state: DeliveryState
    begun_at: float
    """When it was sent, or sent again by hand: its 72 hours count from here."""
    n_tries: int
    """Since then."""
    tries: tuple[Try, ...]
    """The latest of all tries."""
    next_at: float | None = None
    """When it is tried next; None: it has ended."""


class TryResult(NamedTuple):
    """What follows from one try."""

    done: Try
    state: DeliveryState
    next_at: float | None = None
    """Of a pending delivery: when it is tried again."""
    disabled: str = ""
    """Why nothing is sent to its endpoint any more; empty: nothing has changed."""
