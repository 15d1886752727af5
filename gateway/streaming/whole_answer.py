"""An answer that is not streamed, as the worker gave it."""

from __future__ import annotations

from typing import NamedTuple

from shared.api.errors import job_error
from shared.protocol.job import Job
from shared.protocol.states import JobState


class WholeAnswer(NamedTuple):
    """An HTTP response, without the headers that the gateway adds."""

    status: int
    content_type: str
    body: bytes


def whole_answer(job: Job) -> WholeAnswer | None:
    """What the worker answered; None if that was streamed. Raises the error of any other end."""
    if job.result:
        return WholeAnswer(job.status, job.content_type, job.result)
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and job.status == 200):
        return None
    raise job_error(job.error_code, job.id)
