"""What Redis holds of a job that is text."""

from __future__ import annotations

from redis import Redis

from shared.job.log import Delta, Position, read_entry, read_journal


def text_of(redis_url: str, job_id: str) -> str:
    """All text in a job's record and in its log: its chunks, and its journal."""
    with Redis.from_url(redis_url) as client:
        (log,) = client.keys(f"*log:{job_id}")
        (record,) = client.keys(f"*:job:{job_id}")
        found = client.xrange(log)
        parts = list(client.hgetall(record).values())
    entries = [read_entry(Position.read(entry_id), fields[b"d"]) for entry_id, fields in found]
    records = [each for entry in entries for each in read_journal(entry.journal, entry.items)]
    parts += [item for entry in entries for item in entry.items if isinstance(item, bytes)]
    parts += [each.text.encode() for each in records if isinstance(each, Delta)]
    return b"".join(parts).decode(errors="replace")
