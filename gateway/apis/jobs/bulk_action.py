"""Cancels or retries all jobs that a filter matches, a bounded number in each call."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from pydantic import BaseModel, Field

from gateway.core.call import REPEATABLE, repeat
from gateway.core.context import Gateway
from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.errors import NotRepeatable
from shared.job.job import Job, shard_in
from shared.job.states import JobState
from shared.platform.tasks import run_together
from shared.store.views import Place

MOST_JOBS = 1000
"""Jobs in one call; `next_cursor` continues."""
_MOST_READ = 20_000
_AT_ONCE = 50
_IDS_SHOWN = 100
_CANCELLABLE = frozenset({JobState.QUEUED, JobState.IN_PROGRESS})


BulkAction = Literal["cancel", "retry"]


class Bulk(BaseModel):
    """The result of one call."""

    object: Literal["bulk"] = "bulk"
    action: BulkAction
    filter: str
    dry_run: bool
    matched: int = Field(description="jobs of this call: 1000 at most")
    done: int
    skipped: int = Field(description="those that ended meanwhile, or whose request is gone")
    ids: list[str] = Field(description="of the first 100 that matched")
    new_ids: list[str] = Field(description="of the first 100 new jobs")
    more: bool
    next_cursor: str | None


class BulkActions:
    """The actions, by name: `cancel` and `retry`. Their calls raise StoreError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(
        self,
        action: BulkAction,
        tenants: Sequence[str],
        job_filter: JobFilter,
        before: Place | None,
        *,
        dry_run: bool,
    ) -> Bulk:
        """Carry out the action on the jobs of these tenants that match and that allow it.

        `before`: the cursor of the call before. Newest jobs first.
        """
        states = _CANCELLABLE if action == "cancel" else REPEATABLE
        allowed = dataclasses.replace(
            job_filter, tests=(*job_filter.tests, lambda job: job.state in states)
        )
        found = await search(self._gateway.queue, tenants, allowed, before, MOST_JOBS, _MOST_READ)
        done: list[str] = []
        if not dry_run:
            one: Callable[[Job], Awaitable[str]]
            one = self._cancel if action == "cancel" else self._retry
            for first in range(0, len(found.jobs), _AT_ONCE):
                batch = found.jobs[first : first + _AT_ONCE]
                done += filter(None, await run_together(*map(one, batch)))
        matched = len(found.jobs)
        return Bulk(
            action=action,
            filter=job_filter.text,
            dry_run=dry_run,
            matched=matched,
            done=len(done),
            skipped=0 if dry_run else matched - len(done),
            ids=[job.id for job in found.jobs[:_IDS_SHOWN]],
            new_ids=done[:_IDS_SHOWN] if action == "retry" else [],
            more=found.cursor is not None,
            next_cursor=None if found.cursor is None else str(found.cursor),
        )

    async def _cancel(self, job: Job) -> str:
        """The job's id; empty if it had ended meanwhile in another way."""
        [state] = await self._gateway.queue.cancel(job.tenant, job.id)
        return job.id if state is JobState.CANCELLED else ""

    async def _retry(self, job: Job) -> str:
        """The new job's id; empty if the request is not kept any more."""
        try:
            new = await repeat(self._gateway, job, retry_id(job))
        except NotRepeatable:
            return ""
        await self._gateway.submitter.submit(new)
        return new.id


def retry_id(job: Job) -> str:
    """The id of the job's repetition, the same for each call, so that there is one only."""
    random = hashlib.sha256(f"retry {job.id}".encode()).hexdigest()[:24]
    return f"job_{shard_in(job.id):03x}{random}"
