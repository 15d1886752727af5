"""The log lines of a run carry its ids, from a real queue to the formatted line."""

from __future__ import annotations

import io
import json
import logging

import pytest

from shared.platform import logs
from shared.store.queue import Queue
from tests.harness.waiting import eventually
from tests.store.conftest import submit
from tests.redis.worker_loops import chat, serving
from worker.core.job_run import JobRun, Outcome


async def test_a_line_of_a_run_has_the_job_and_the_attempt(
    queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: JobRun) -> Outcome:
        raise RuntimeError("broken")

    monkeypatch.setattr(JobRun, "execute", fail)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.formatter(as_json=True))
    monkeypatch.setattr(logging.getLogger("flotilla"), "handlers", [handler])
    async with serving(queue, slots=1):
        job = await submit(queue, body=chat(4))

        async def failed() -> list[str]:
            return [line for line in stream.getvalue().splitlines() if '"run failed"' in line]

        (line,) = (await eventually(failed, "the run has failed"))[:1]
    fields = json.loads(line)
    assert (fields["job_id"], fields["attempt"]) == (job.id, 1)
    assert fields["exception"].endswith("RuntimeError: broken")
