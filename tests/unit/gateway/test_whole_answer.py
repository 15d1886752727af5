"""The answer at a job's end, if its record does not have that end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.log_event import LogEvent
from gateway.core.whole_answer import answer_at_end
from shared.job.errors import StreamReset
from shared.job.frames import FrameKind
from shared.job.job import Job
from shared.job.states import JobState
from tests.unit.gateway.jobs import job


class Queue:
    def __init__(self, found: Job | None) -> None:
        self._found = found

    async def get(self, job_id: str) -> Job | None:
        return self._found


@pytest.mark.parametrize(
    "found", [None, job(state=JobState.IN_PROGRESS), job(state=JobState.QUEUED)]
)
async def test_redis_has_lost_it(found: Job | None) -> None:
    """A replica that is the master now may lack the last writes, which were published."""
    queue: Any = Queue(found)
    with pytest.raises(StreamReset):
        await answer_at_end(queue, "job_1", LogEvent(7, FrameKind.ENDED, b"completed"))
