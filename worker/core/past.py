"""What earlier attempts at a job have generated, as its log has it."""

from __future__ import annotations

from collections.abc import Sequence

from shared.job.log import START, Entry, EventName, Position
from shared.store.queue import HeldJob, Queue

PAGE = 1000
"""Entries of one call."""


async def read_past(queue: Queue, job: HeldJob) -> Sequence[Entry] | None:
    """The entries in front of the job's claim that count, in their order; None if the log does not
    reach as far: then the job can't be continued. Raises StoreError.

    Entries that follow the claim are others': the job has been taken away since.
    """
    claim, after = Position(job.generation, job.number), START
    entries: list[Entry] = []
    number = 0
    while job.number > 1:
        page = await queue.read(job.id, after, PAGE)
        if after != START:
            if not page or page[0].position != after:
                return None
            page = page[1:]
        for entry in page:
            number += 1
            if entry.position == claim:
                return entries
            if entry.position.number != number:
                return None
            if entry.event == EventName.RESTARTED:
                entries = []
            entries.append(entry)
        if not page:
            return None
        after = page[-1].position
    return entries
