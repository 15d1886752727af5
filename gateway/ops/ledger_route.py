"""Whether the ledger of use is added up: what `flotilla doctor` asks a gateway."""

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
from shared.store.redis.usage_records import LedgerBacklog, UsageRecords

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])


class LedgerOverview(BaseModel):
    """The ledger of use: an entry for each job that has ended."""

    object: Literal["ledger"] = "ledger"
    waiting: int
    """Entries that are not in the sums yet; with those that are about to be deleted."""
    oldest_s: float
    """How long the oldest of these has waited; 0: none does."""
    added: int
    """Entries that are in the sums, ever."""
    dropped: int
    """Entries that are in no sum, ever, as too many waited."""
    problems: list[Problem]

    @classmethod
    def of(cls, backlog: LedgerBacklog) -> Self:
        """What is left to do, and what is wrong with that."""
        entries, age = backlog.entries, duration(backlog.oldest_s)
        words = {"jobs": "1 job" if entries == 1 else f"{entries:,} jobs", "age": age}
        return cls(
            waiting=entries,
            oldest_s=backlog.oldest_s,
            added=backlog.added,
            dropped=backlog.dropped,
            problems=list(check(limits.USAGE_LATE, backlog.oldest_s, words)),
        )


@router.get("/ledger")
async def get_ledger(gateway: GatewayDep) -> LedgerOverview:
    """How much of the ledger is not in the sums of `/admin/usage` yet, and what to do."""
    return LedgerOverview.of(await UsageRecords(gateway.queue).backlog())
