"""`read_log`: a job's log, and what its worker has written since it was last flushed there."""

from __future__ import annotations

from typing import NamedTuple

from shared.store.redis.scripts.runner import Scripts


class LogSegments(NamedTuple):
    """The reply."""

    generation: int
    """Of the job's latest lease, which wrote the entries; 0 if there was none."""
    more: bool
    """There are entries behind those of the segments."""
    segments: list[bytes]
    """In their order; the first may begin with entries that were not asked for."""


async def call(
    scripts: Scripts, shard: int, job_id: str, *, after: int | None, most_bytes: int | None = None
) -> LogSegments:
    """The segments with the entries behind number `after`; None: with the last entry only.

    `most_bytes`: of segments, if the reader wants them in parts.
    """
    arguments = (
        job_id,
        "" if after is None else after,
        "" if most_bytes is None else most_bytes,
    )
    generation, more, *segments = await scripts.run("read_log", shard, arguments)
    return LogSegments(int(generation or 0), bool(more), segments)
