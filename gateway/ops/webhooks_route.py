"""Whether events reach webhooks: what `flotilla doctor` asks a gateway."""

from __future__ import annotations

from typing import Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.core.context import GatewayDep
from gateway.http.query import known_only
from gateway.ops.overview.models import Problem
from gateway.ops.overview.problems import check
from shared.fleet import limits
from shared.platform.durations import duration
from shared.store.redis.delivery_records import Backlog, DeliveryRecords

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])


class WebhookOverview(BaseModel):
    """The webhooks of all tenants."""

    object: Literal["webhooks"] = "webhooks"
    events: int
    """What has ended and maintenance has not taken for delivery yet."""
    oldest_s: float
    """How long the oldest of these has waited."""
    endpoints: int
    """Those to which events are on their way."""
    overdue_s: float
    """How long the first due delivery has been so; where a receiver hangs, its own wait."""
    deliveries: dict[str, int]
    """Ever: `delivered`, `failed`, `retried` (tries of these), `dropped` (too many waited)."""
    problems: list[Problem]

    @classmethod
    def of(cls, backlog: Backlog) -> Self:
        """What is left to do, and what is wrong with that."""
        events, age = backlog.events, duration(backlog.oldest_s)
        words = {"events": "1 event waits" if events == 1 else f"{events} events wait", "age": age}
        return cls(
            events=events,
            oldest_s=backlog.oldest_s,
            endpoints=backlog.endpoints,
            overdue_s=backlog.overdue_s,
            deliveries=dict(backlog.counts),
            problems=list(check(limits.WEBHOOKS_LATE, backlog.oldest_s, words)),
        )


@router.get("/webhooks")
async def get_webhooks(gateway: GatewayDep) -> WebhookOverview:
    """How many events wait for webhooks, what became of the others, and what to do."""
    return WebhookOverview.of(await DeliveryRecords(gateway.queue).backlog())
