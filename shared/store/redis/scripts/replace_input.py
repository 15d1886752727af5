"""`replace_input`: take the input of a completed response out of its record, or put it back."""

from __future__ import annotations

from shared.job.job import shard_in
from shared.store.redis.scripts.runner import Scripts


async def take_out(
    scripts: Scripts, job_id: str, *, head_bytes: int, later: str, most_ttl_ms: int
) -> bool:
    """The job `later`, which is kept for so long, has the input at the beginning of its own.

    False if nothing was changed. Raises redis' errors.
    """
    words = (job_id, head_bytes, "", later, b"[]", most_ttl_ms)
    return bool(await scripts.run("replace_input", shard_in(job_id), words))


async def put_back(
    scripts: Scripts, job_id: str, *, head_bytes: int, later: str, given: bytes
) -> bool:
    """The job `later` is deleted; `given`: the input as JSON. Raises redis' errors."""
    words = (job_id, head_bytes, later, "", given, "")
    return bool(await scripts.run("replace_input", shard_in(job_id), words))
