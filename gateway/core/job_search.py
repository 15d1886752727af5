"""Finds the jobs that a filter matches, newest first, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.job_filter import JobFilter
from shared.job.job import Job
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.listing import page

_ROWS = 100
"""Rows in one read of a list that is filtered."""


class FoundJobs(NamedTuple):
    """A page of a search."""

    jobs: list[Job]
    cursor: int | None
    """Where the next page begins: a time of submission in us; None: there is no other page."""


async def search(
    queue: JobQueue,
    tenants: Sequence[str],
    job_filter: JobFilter,
    before_us: int | None,
    limit: int,
    most_read: int,
) -> FoundJobs:
    """At most `limit` jobs before that time. Examines about `most_read` jobs at most.

    Raises StoreError if any server can't be reached.
    """
    found: list[Job] = []
    rows_per_read = _ROWS if job_filter.tests else min(limit, _ROWS)
    if job_filter.until_s != float("inf"):
        until_us = int(job_filter.until_s * 1e6)
        before_us = until_us if before_us is None else min(before_us, until_us)
    read, more = 0, True
    while more and len(found) < limit and read < most_read:
        rows = await page(queue, tenants, before_us, rows_per_read)
        more = len(rows) == rows_per_read
        for created_us, _, job in rows:
            if created_us < job_filter.since_s * 1e6:
                more = False
                break
            before_us = created_us
            read += 1
            if job and job_filter.matches(job):
                found.append(job)
                if len(found) == limit:
                    more = True
                    break
    return FoundJobs(found, before_us if more else None)
