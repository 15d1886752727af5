"""Finds the jobs that a filter matches, newest first, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.job_filter import JobFilter
from shared.job.job import Job
from shared.store.queue import Queue
from shared.store.views import Place, page

_ROWS = 100
"""Rows in one read of a list that is filtered."""


class FoundJobs(NamedTuple):
    """A page of a search."""

    jobs: list[Job]
    cursor: Place | None
    """Where the next page begins; None: there is no other page."""


async def search(
    queue: Queue,
    tenants: Sequence[str],
    job_filter: JobFilter,
    before: Place | None,
    limit: int,
    most_read: int,
) -> FoundJobs:
    """At most `limit` jobs behind that place. Examines about `most_read` jobs at most.

    Raises StoreError if any server can't be reached.
    """
    found: list[Job] = []
    rows_per_read = _ROWS if job_filter.tests else min(limit, _ROWS)
    if job_filter.until_s != float("inf"):
        until = Place(int(job_filter.until_s * 1e6))
        before = until if before is None else min(before, until)
    read, more = 0, True
    while more and len(found) < limit and read < most_read:
        rows = await page(queue, tenants, before, rows_per_read)
        more = len(rows) == rows_per_read
        for created_us, job_id, job in rows:
            if created_us < job_filter.since_s * 1e6:
                more = False
                break
            before = Place(created_us, job_id)
            read += 1
            if job and job_filter.matches(job):
                found.append(job)
                if len(found) == limit:
                    more = True
                    break
    return FoundJobs(found, before if more else None)
