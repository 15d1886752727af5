"""`restart`: a worker gives up a job whose log its engine can't continue."""

from __future__ import annotations

from shared.job.job import LeasedJob
from shared.store.redis.scripts.runner import Scripts, text


async def call(scripts: Scripts, job: LeasedJob, *, reason: str, code: str) -> str | None:
    """The job's new state; None if the worker had lost it already.

    It is queued with an empty log, or it has failed, as a client may have seen what was generated.
    Its error is `code` then, or `log_lost`.
    `reason` goes into the job's history.
    """
    return text(await scripts.run("restart", job.shard, (job.id, job.lease_id, reason, code)))
