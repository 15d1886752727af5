"""The answer at a job's end, if its record does not have that end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.answer import answer_at_end
from gateway.core.reader import LogEvent
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.job import Job
from shared.job.states import JobState
from shared.store.errors import StoreError, StoreTimeout, StoreUnavailable
from tests.unit.gateway.jobs import job

END = LogEvent(7, "completed", b"", (3, 0))
"""As a frame tells it, or the log; the answer is in the record."""


class Queue:
    def __init__(self, found: Job | None, *errors: StoreError) -> None:
        self._found = found
        self._errors = list(errors)

    async def get(self, job_id: str) -> list[Job | None]:
        if self._errors:
            raise self._errors.pop(0)
        return [self._found]


@pytest.mark.parametrize(
    "found", [None, job(state=JobState.IN_PROGRESS), job(state=JobState.QUEUED)]
)
async def test_redis_has_lost_it(found: Job | None) -> None:
    """A replica that is the master now may lack the last writes, which were published."""
    queue: Any = Queue(found)
    with pytest.raises(StreamReset):
        await answer_at_end(queue, "job_1", END)


async def test_it_is_read_again_after_a_lost_connection() -> None:
    queue: Any = Queue(job(state=JobState.COMPLETED), StoreUnavailable("lost"))
    assert await answer_at_end(queue, "job_1", END) is None


async def test_a_redis_that_does_not_answer() -> None:
    queue: Any = Queue(None, StoreTimeout("no answer"))
    with pytest.raises(RedisUnavailable):
        await answer_at_end(queue, "job_1", END)
