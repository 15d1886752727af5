"""`set_aside`: move data that a process could not read to the dead letters."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def job(scripts: Scripts, shard: int, job_id: str, *, field: str, value: bytes) -> bool:
    """A job whose record's `field` has this unreadable `value`; it fails with `record_damaged`.

    A damaged `history` is set aside alone. Returns whether anything was done: False if the record
    has changed since it was read.
    """
    return bool(await scripts.run("set_aside", shard, ("job", job_id, field, value)))


async def segment(scripts: Scripts, shard: int, job_id: str, *, value: bytes) -> bool:
    """A segment of a job's log whose entries can't be read."""
    return bool(await scripts.run("set_aside", shard, ("log", job_id, "", value)))


async def index_member(scripts: Scripts, shard: int, tenant: str, *, value: bytes) -> bool:
    """A member of a tenant's index of jobs that is no job id."""
    return bool(await scripts.run("set_aside", shard, ("jobs", tenant, "", value)))
