"""What Redis holds of a job: its record, its log, how long it keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.job.job import Job, checked_shard
from shared.job.job_log import Entry, parse_segments
from shared.job.record import parse_job
from shared.store.redis import keys
from shared.store.servers import Servers

_READS = 4
"""Commands per job."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """One job as Redis holds it."""

    job: Job
    entries: Sequence[Entry]
    lacks_entries: bool
    """Redis has lost entries of the log."""
    ttl_ms: int
    """Of the record; -1: it is kept for good."""
    log_ttl_ms: int
    """As `ttl_ms`; -2: there is no log."""


async def read_jobs(servers: Servers, ids: Sequence[str]) -> dict[str, StoredJob | None]:
    """Read jobs; None for those that Redis does not have. Raises StoreError."""
    pipe = servers.pipeline()
    for job_id in ids:
        shard = checked_shard(job_id)
        pipe.of(shard).hgetall(keys.job(shard, job_id))
        pipe.of(shard).lrange(keys.log(shard, job_id), 0, -1)
        pipe.of(shard).pttl(keys.job(shard, job_id))
        pipe.of(shard).pttl(keys.log(shard, job_id))
    replies = await pipe.execute()
    rows = zip(*[iter(replies)] * _READS, strict=True)
    return {job_id: _stored(job_id, *row) for job_id, row in zip(ids, rows, strict=True)}


def _stored(
    job_id: str, raw: dict[bytes, bytes], segments: list[bytes], ttl_ms: int, log_ttl_ms: int
) -> StoredJob | None:
    if not raw:
        return None
    entries = parse_segments(segments, 0)
    lacks = b"log_lost" in raw or any(entry.lost for entry in entries)
    return StoredJob(parse_job(job_id, raw), entries, lacks, ttl_ms, log_ttl_ms)
