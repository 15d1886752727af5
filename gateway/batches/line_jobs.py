"""The jobs of a batch's lines: how they are made, and what they lead to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b

from gateway.batches.batch_context import BatchContext
from gateway.batches.line_result import CutOff, LineResult, answered, given_up, refused
from gateway.core.answer import whole_answer
from gateway.core.call import line_job
from shared.api.endpoints import ENDPOINTS
from shared.batches.batch import Batch
from shared.batches.line_check import parse_line
from shared.job.errors import FlotillaError, JobFailed
from shared.job.job import Job, NewJob

log = logging.getLogger("flotilla.batches")

_MOST_TRIES = 3
_AT_ONCE = 64
"""Jobs that are deleted in one call: Redis does nothing else meanwhile."""
_RETRIED = frozenset({"worker_lost", "log_lost"})


class LineJobs:
    """Those of one batch."""

    def __init__(self, context: BatchContext, batch: Batch) -> None:
        self._context = context
        self._batch = batch

    def id_of(self, number: int, tries: int) -> str:
        """The id of a line's job; a line that is submitted twice in one try is one job."""
        digest = blake2b(f"{self._batch.id} {number} {tries}".encode(), digest_size=16).digest()
        shard = int.from_bytes(digest[:4]) % self._context.queue.shards
        return f"job_{shard:03x}{digest[4:].hex()}"

    async def new(
        self, number: int, job_id: str, data: bytes
    ) -> tuple[NewJob, int] | LineResult | None:
        """The job of a line and the tokens that it is expected to use, or its result if it is
        refused; None: it has to wait."""
        batch, line = self._batch, parse_line(data)
        custom_id, body = line.custom_id, bytes(line.body)
        metadata = {"batch_id": batch.id, "custom_id": custom_id}
        try:
            endpoint = ENDPOINTS[batch.endpoint]
            job, tokens = await line_job(self._context, batch.tenant, endpoint, body)
            return job._replace(id=job_id, metadata=metadata, key=batch.key), tokens
        except FlotillaError as error:
            # 503: no worker has this model now, or the pool's intake is stopped.
            if error.status == 503:
                return None
            return refused(number, custom_id, job_id, batch.endpoint, error)
        except ValueError:
            log.exception("line %d of %s can't be submitted", number, batch.id)
            message = "The gateway could not submit this request."
            return given_up(number, custom_id, job_id, "internal_error", message)

    async def result_of(
        self, number: int, job: Job, tries: int, cut_off: CutOff | None
    ) -> LineResult | None:
        """What a job that has ended gives its line; None: it is to be tried again.

        `cut_off`: why the batch ends. Raises StoreError.
        """
        may_retry = tries + 1 < _MOST_TRIES and cut_off is None
        custom_id = job.metadata["custom_id"]
        try:
            answer = whole_answer(self._context.queue, job)
            if answer is None:
                return given_up(
                    number, custom_id, job.id, "answer_not_json", "The answer is a stream."
                )
            body = b"".join([part async for part in answer.body.parts()])
        except FlotillaError as error:
            if may_retry and (error.code in _RETRIED or not isinstance(error, JobFailed)):
                return None
            code, message = cut_off or CutOff(error.code or "job_failed", str(error))
            return given_up(number, custom_id, job.id, code, message)
        if answer.status >= 500 and may_retry:
            return None
        return answered(number, custom_id, job.id, answer.status, body)


async def delete_jobs(context: BatchContext, jobs: Sequence[str]) -> None:
    """Delete jobs that have ended. Raises StoreError."""
    for at in range(0, len(jobs), _AT_ONCE):
        await context.queue.delete(*jobs[at : at + _AT_ONCE])
