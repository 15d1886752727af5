"""An answer that is not streamed, as the worker gave it."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.reader import LogEvent
from shared.job.errors import RedisUnavailable, StreamReset, job_error
from shared.job.job import Job
from shared.job.states import JobState
from shared.store.answers import Body, read_again
from shared.store.interface import StoreError
from shared.store.queue import Queue


class WholeAnswer(NamedTuple):
    """An HTTP response, without the headers that the gateway adds."""

    status: int
    content_type: str
    body: Body
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further ones that vLLM gave it."""


def whole_answer(queue: Queue, job: Job) -> WholeAnswer | None:
    """The worker's answer; None if that was streamed. Raises the error of any other end."""
    if job.result_bytes:
        headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in job.headers.items())
        return WholeAnswer(job.status, job.content_type, Body(b"", queue, job), headers)
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and job.status == 200):
        return None
    raise job_error(job.error_code, job.id)


async def answer_at_end(queue: Queue, job_id: str, last: LogEvent) -> WholeAnswer | None:
    """The answer of a job whose last event this is; None if it was streamed and is complete.

    Raises the error of a job that ended otherwise.
    """
    if last.is_streamed:
        return None
    if len(last.details) > 2:
        status, content_type, body = last.details[2:]
        return WholeAnswer(status, content_type.decode(), Body(body))
    try:
        [job] = await read_again(lambda: queue.get(job_id))
    except StoreError as error:
        raise RedisUnavailable("The queue can't be reached; the job has ended.") from error
    if job is None:
        raise StreamReset("The job is gone.")
    if not job.state.terminal:
        raise StreamReset("Redis has lost the end of this job; try again.")
    return whole_answer(queue, job)
