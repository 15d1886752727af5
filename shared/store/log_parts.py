"""The log of a job from its first entry on, in parts: other streams go on in between."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence

from shared.job.errors import StreamReset
from shared.job.job import Job, shard_in
from shared.job.job_log import Entry, tokens_in
from shared.job.states import JobState
from shared.store.interface import Store

_PART_BYTES = 1 << 14
"""About 1,500 tokens."""


class LogTooLong(Exception):
    """The log has more bytes than its reader takes."""


async def log_parts(
    queue: Store, job: Job, *, most_bytes: float = math.inf, most_at_once: float = math.inf
) -> AsyncIterator[Sequence[Entry]]:
    """The entries of the log, a few at a time; a process reads one log of a server at a time.

    `most_bytes`: of the log. `most_at_once`: of a part; entries that were written together are not
    divided. Raises LogTooLong, StreamReset if Redis has lost a part of the log, and StoreError.
    """
    shard, after, size, found = shard_in(job.id), 0, 0, 0
    generated: int | None = None
    ended, more = False, True
    while more:
        async with queue.reading_log(shard):
            part = await queue.read_log(job.id, after, _PART_BYTES, most_at_once)
            size += part.size
            if part.size > most_at_once or size > most_bytes:
                raise LogTooLong
            for entry in part.entries:
                if entry.lost:
                    raise _lost()
                found += tokens_in(entry.journal)
                after, generated, ended = entry.seq, entry.tokens, bool(entry.end)
        more = part.more and bool(part.entries)
        yield part.entries  # in the same turn of the event loop
    missing = generated is not None and generated != found
    if missing or (job.state is JobState.COMPLETED and not ended):
        raise _lost()


def _lost() -> StreamReset:
    return StreamReset("The log of this job has lost tokens; submit the request again.")
