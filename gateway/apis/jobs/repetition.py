"""A job's request submitted again, as a new job.

The old job stays as it ended: a terminal state never changes, so that every reader of a job sees
the same end, whenever it asks.
"""

from __future__ import annotations

from gateway.core.job_factory import JobFactory
from shared.job.errors import NotRepeatable
from shared.job.idempotency import IdempotencyKey
from shared.job.job import Job, NewJob, checked_shard
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

REPEATABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


async def repetition(
    queue: JobQueue,
    factory: JobFactory,
    job: Job,
    new_id: str = "",
    idempotency: IdempotencyKey | None = None,
) -> NewJob:
    """A new job with the request of one that ended without an answer.

    Raises NotRepeatable, and redis' errors. `new_id`: empty for any.
    """
    if job.state not in REPEATABLE:
        raise NotRepeatable(
            f"This job is {job.state}; only a failed, cancelled or expired one can be repeated."
        )
    shard = checked_shard(job.id)
    body: bytes | None = await queue.servers.of(shard).hget(keys.job(shard, job.id), "body")
    if not body:
        raise NotRepeatable("The request of this job is not kept any more; send it again.")
    return factory.repeated(job, body, new_id, idempotency)
