"""`isolate`: take, keep or give up the right to run the suspects of a pool.

Comes from `worker/core/isolation.py`.
"""

from __future__ import annotations

from enum import StrEnum

from shared.store.redis.scripts.runner import Scripts

SHARD = 0
"""The shard whose server holds the locks of all pools."""


class IsolationStage(StrEnum):
    """How far a worker is that wants to run suspects."""

    NONE = ""
    """It runs none, and gives up the right to."""
    DRAINING = "draining"
    """It claims nothing, and waits for the end of the jobs that it runs."""
    ALONE = "alone"
    """It runs suspects, one after another, and nothing else."""


async def call(
    scripts: Scripts, *, pool: str, worker: str, stage: IsolationStage, lock_s: float
) -> bool:
    """Whether the worker has the isolation now. Raises redis' errors."""
    arguments = (pool, worker, stage.value, int(lock_s * 1000))
    return bool(await scripts.run("isolate", SHARD, arguments))
