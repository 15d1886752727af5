"""Damage to what Redis holds of a job."""

from __future__ import annotations

from redis import Redis


def lose_first_entry(redis_url: str, job_id: str) -> None:
    """Take the first of several entries with output out of a job's log."""
    with Redis.from_url(redis_url) as client:
        (log,) = client.keys(f"*log:{job_id}")
        assert client.xlen(log) > 2
        ((_, _), (first, _)) = client.xrange(log, count=2)  # behind that of the claim
        client.xdel(log, first)


def spoil_record(redis_url: str, job_id: str, field: str) -> None:
    """Replace a field of a job's record by bytes that can't be read."""
    with Redis.from_url(redis_url) as client:
        (record,) = client.keys(f"*:job:{job_id}")
        assert client.hexists(record, field)
        client.hset(record, field, b"\xc1 damaged")
