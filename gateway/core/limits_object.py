"""Limits of keys and tenants as the API shows them, and what is used of them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.context import Gateway
from shared.store.usage import UsageRecords
from shared.tenants.rate_limits import MOST, RateLimits


class LimitsObject(BaseModel):
    """Limits of a key, or of all keys of a tenant together; 0: no limit."""

    model_config = ConfigDict(extra="forbid")

    requests_per_minute: int = Field(0, ge=0, le=MOST)
    tokens_per_minute: int = Field(0, ge=0, le=MOST)
    """Of prompts and answers."""
    concurrent_requests: int = Field(0, ge=0, le=MOST)
    """Requests whose clients wait for an answer."""
    tokens_per_day: int = Field(0, ge=0, le=MOST)
    """From midnight to midnight, UTC."""
    tokens_per_month: int = Field(0, ge=0, le=MOST)
    """Of the calendar, UTC."""

    @property
    def limits(self) -> RateLimits:
        """As they are stored."""
        return RateLimits(*(getattr(self, name) for name in RateLimits._fields))


class UsedObject(BaseModel):
    """What is used of budgets: tokens of prompts and answers, a second or two late."""

    tokens_today: int
    """Since midnight, UTC."""
    tokens_this_month: int
    """Of the calendar, UTC."""


def limits_object(limits: RateLimits) -> LimitsObject:
    """Limits in the API's form."""
    return LimitsObject(**limits._asdict())


async def used_objects(gateway: Gateway, names: Sequence[str]) -> list[UsedObject]:
    """What each has used of its budgets, by the names of limits. Raises StoreError."""
    found = await UsageRecords(gateway.queue).used(names, gateway.fleet.now_s())
    return [UsedObject(**each._asdict()) for each in found]
