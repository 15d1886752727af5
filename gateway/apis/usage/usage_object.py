"""Use as the API shows it: JSON, and the same table as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import date
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from gateway.apis.usage.usage_query import UsageAnswer
from gateway.core.limits_object import LimitsObject, UsedObject
from shared.store.usage import UsageSums

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins with one of these is computed by a spreadsheet."""
_MICRO = 1e6


class UsageFigures(BaseModel):
    """What some jobs have used together. The tokens have OpenAI's names."""

    jobs: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    input_tokens: int
    input_cached_tokens: int
    """Those of the input that the engine had in its cache."""
    output_tokens: int
    queue_s: float
    """Time in the queue, until the first start."""
    engine_s: float
    """Time with a worker, of all attempts."""
    wasted_s: float
    """That of attempts that were taken back and have added nothing to the answer."""
    uncounted_jobs: int
    """Jobs without token counts: their log was gone before their tokens were counted."""


class UsageRowObject(UsageFigures):
    """One row; null: it is of all days, tenants, keys or models."""

    day: str | None = None
    tenant: str | None = None
    key: str | None = None
    """The id of the API key; empty: it stands in the gateway's settings."""
    model: str | None = None


class UsageTable(BaseModel):
    """The use of some days, added up by some columns."""

    model_config = ConfigDict(populate_by_name=True)

    object: Literal["usage"] = "usage"
    first: date = Field(alias="from")
    last: date = Field(alias="to")
    """UTC days, both included."""
    by: list[str]
    data: list[UsageRowObject]
    total: UsageFigures

    @classmethod
    def of(cls, answer: UsageAnswer, **more: Any) -> Self:
        """An answer in the API's form. `more`: what a kind of tables has besides."""
        by = answer.query.by
        return cls(
            first=answer.query.first,
            last=answer.query.last,
            by=list(by),
            data=[
                UsageRowObject(**dict(zip(by, groups, strict=True)), **_figures(sums))
                for groups, sums in answer.rows
            ],
            total=UsageFigures(**_figures(answer.total)),
            **more,
        )


class UsedLimits(BaseModel):
    """Limits, and what is used of the budgets among them."""

    limits: LimitsObject
    used: UsedObject


class OwnLimits(BaseModel):
    """The limits that hold for a caller."""

    tenant: UsedLimits
    """Of all its keys together."""
    key: UsedLimits | None
    """Null: the key stands in the gateway's settings, or no keys are needed."""


class OwnUsageTable(UsageTable):
    """The use of one tenant, with its limits."""

    limits: OwnLimits


def csv_of(answer: UsageAnswer) -> bytes:
    """The rows as CSV, without a total."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow((*answer.query.by, *UsageFigures.model_fields))
    for groups, sums in answer.rows:
        writer.writerow((*_cells(groups), *_figures(sums).values()))
    return text.getvalue().encode()


def _cells(values: Iterable[str]) -> list[str]:
    """An apostrophe in front has a spreadsheet show a formula instead of computing it."""
    return [f"'{value}" if value.startswith(_FORMULA) else value for value in values]


def _figures(sums: UsageSums) -> dict[str, Any]:
    return {
        "jobs": sums.jobs,
        "completed": sums.completed,
        "failed": sums.failed,
        "cancelled": sums.cancelled,
        "expired": sums.expired,
        "input_tokens": sums.prompt_tokens,
        "input_cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "queue_s": sums.queue_us / _MICRO,
        "engine_s": sums.engine_us / _MICRO,
        "wasted_s": sums.wasted_us / _MICRO,
        "uncounted_jobs": sums.uncounted,
    }
