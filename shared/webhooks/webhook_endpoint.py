"""Webhook endpoints of tenants, and the events that they may subscribe to."""

from __future__ import annotations

import os
from typing import NamedTuple

EVENT_TYPES = (
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.expired",
)
MOST_ENDPOINTS = 20
"""Of one tenant."""


class WebhookEndpoint(NamedTuple):
    """An endpoint. Times are Unix seconds by Redis' clock."""

    id: str
    tenant: str
    name: str
    url: str
    event_types: tuple[str, ...]
    secret: str
    created_at: float
    updated_at: float
    old_secret: str = ""
    """Signs, too, until `old_until`; empty: there is none."""
    old_until: float = 0.0
    disabled: str = ""
    """Why nothing is sent to it any more; empty: events are sent."""

    def secrets(self, now_s: float) -> tuple[str, ...]:
        """Those that sign now."""
        with_old = self.old_secret and now_s < self.old_until
        return (self.secret, self.old_secret) if with_old else (self.secret,)


def new_endpoint_id() -> str:
    """`we_` and 96 random bits."""
    return f"we_{os.urandom(12).hex()}"
