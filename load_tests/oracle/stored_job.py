"""What Redis holds of a job: its record, its log, how long it keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.job.job import Job, checked_shard
from shared.job.log import Entry, EventName, Position, read_entry
from shared.job.record import parse_job
from shared.store import keys
from shared.store.servers import Servers

_READS = 4
"""Commands per job."""
LogEntry = tuple[bytes, dict[bytes, bytes]]
"""Id and fields."""


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
    begun_bytes: int = 0
    """Of its body, if a worker has had it and none has reported its end; else 0."""

    @property
    def answer(self) -> Sequence[Entry]:
        """The entries of the present answer: those behind its last beginning."""
        begins = [n for n, entry in enumerate(self.entries) if entry.event == EventName.RESTARTED]
        return self.entries[begins[-1] :] if begins else self.entries


async def read_jobs(servers: Servers, ids: Sequence[str]) -> dict[str, StoredJob | None]:
    """Read jobs; None for those that Redis does not have. Raises StoreError."""
    pipe = servers.pipeline()
    for job_id in ids:
        shard = checked_shard(job_id)
        pipe.of(shard).hgetall(keys.job(shard, job_id))
        pipe.of(shard).xrange(keys.log(shard, job_id))
        pipe.of(shard).pttl(keys.job(shard, job_id))
        pipe.of(shard).pttl(keys.log(shard, job_id))
    replies = await pipe.execute()
    rows = zip(*[iter(replies)] * _READS, strict=True)
    return {job_id: _stored(job_id, *row) for job_id, row in zip(ids, rows, strict=True)}


def _stored(
    job_id: str,
    raw: dict[bytes, bytes],
    log: list[tuple[bytes, dict[bytes, bytes]]],
    ttl_ms: int,
    log_ttl_ms: int,
) -> StoredJob | None:
    if not raw:
        return None
    job = parse_job(job_id, raw)
    entries = [read_entry(Position.read(entry_id), fields[b"d"]) for entry_id, fields in log]
    numbers = [entry.position.number for entry in entries]
    lacks = job.error_code == "log_lost" or numbers != list(range(1, len(numbers) + 1))
    begun_bytes = 0
    if b"response" not in raw and any(entry.event == EventName.CLAIMED for entry in entries):
        begun_bytes = int(raw.get(b"body_bytes") or len(raw.get(b"body", b"")))
    return StoredJob(job, entries, lacks, ttl_ms, log_ttl_ms, begun_bytes)
