"""`store_piece`: store a piece of a job's answer, before the job ends."""

from __future__ import annotations

from shared.job.result import piece_field
from shared.store.redis.scripts.runner import Scripts


async def call(
    scripts: Scripts, shard: int, job_id: str, *, lease_id: str, number: int, piece: bytes
) -> bool:
    """Whether the worker holds the job; if not, nothing was stored."""
    arguments = (job_id, lease_id, piece_field(number), piece)
    return bool(await scripts.run("store_piece", shard, arguments))
