"""`find_keyed`: the job that an earlier call with the same idempotency key has made."""

from __future__ import annotations

from shared.job.idempotency import IdempotencyKey
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.scripts.submit import SubmitStatus, Submitted


async def call(scripts: Scripts, shard: int, *, key: IdempotencyKey) -> Submitted | None:
    """None if the key is free. Raises redis' errors."""
    found = await scripts.run("find_keyed", shard, (key.name, key.body_hash))
    if found is None:
        return None
    status, job_id = found
    return Submitted(SubmitStatus(status.decode()), 0, job_id.decode())
